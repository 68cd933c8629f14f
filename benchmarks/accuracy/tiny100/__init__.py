"""The paper's claims on 100 classes: a plan of cells in order of what they tell, that can stop and go on."""
