"""The sheet of views: source with its crop box, the view, its partner, its strongest labels as bars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lpld_labels.format.manifest import Augmentation
from lpld_labels.inspect.pages.markup import Markup, folded, joined, shortened, table, tag
from lpld_labels.inspect.report.facts import PoolFacts
from lpld_labels.inspect.report.sample import Sample
from lpld_labels.inspect.report.views import ShownView

_COARSE_BELOW = 160
_BAR_ROW = 38
WIDTH = 260
"""Of the bars, in their own units: as wide as they are on most screens, so that letters keep their size."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Sheet:
    """What cards are made from. against: whether another pool's labels were given."""

    facts: PoolFacts
    sample: Sample
    shown: Sequence[ShownView]
    against: bool

    def markup(self) -> Markup:
        """Return the controls and all cards."""
        cards = [self._card(number, view) for number, view in enumerate(self.shown)]
        return joined([self._controls(), *cards])

    # Picking

    def _controls(self) -> Markup:
        rows = self.sample.rows
        images = sorted({int(rows.image[view.row]) for view in self.shown})
        classes = sorted({int(self.facts.images.classes[image]) for image in images})
        batches = sorted({int(rows.batch[view.row]) for view in self.shown})
        order = tag(
            "select",
            tag("option", "as sampled", value="sampled"),
            tag("option", "most confident first", value="most"),
            tag("option", "least confident first", value="least"),
            id="view-order",
        )
        return tag(
            "div",
            tag("button", "\u2190 Previous", type="button", id="view-previous"),
            tag("button", "Next \u2192", type="button", id="view-next"),
            tag("output", "", id="view-place", aria_live="polite"),
            tag("label", "Order ", order),
            _select("Class", "class", [(str(c), self.facts.names[c]) for c in classes]),
            _select("Image", "image", [(str(i), self.facts.images.paths[i]) for i in images]),
            _select("Batch", "batch", [(str(b), str(self.sample.keys[b])) for b in batches]),
            class_="controls",
            id="view-controls",
            hidden=True,
        )

    # One card

    def _card(self, number: int, view: ShownView) -> Markup:
        rows, images, row = self.sample.rows, self.facts.images, view.row
        image, partner = int(rows.image[row]), int(rows.partner[row])
        own = int(images.classes[image])
        other = int(images.classes[partner]) if partner >= 0 else None
        heading = tag("h3", shortened(self.facts.names[own]), ": ", shortened(images.paths[image]))
        parts = [self._source(view, image), self._view(view)]
        if partner >= 0:
            parts.append(self._partner(view, partner))
        parts.append(self._bars(row, own, other))
        return tag(
            "article",
            heading,
            tag("p", _facts_line(view, float(rows.entropy[row])), class_="quiet"),
            tag("div", *parts, class_="parts"),
            class_="view",
            id=f"view-{number}",
            data_class=own,
            data_image=image,
            data_batch=int(rows.batch[row]),
            data_key=f"{view.views.key.epoch}/{view.views.key.batch}",
            data_slot=view.slot,
            data_confidence=f"{np.nan_to_num(rows.confidence[row], nan=-1.0):.6f}",
        )

    def _source(self, view: ShownView, image: int) -> Markup:
        says = "source image with its crop" + (
            " (patches shuffled first)" if view.views.patch_order is not None else ""
        )
        return self._framed(image, view.pictures.source, view.views.crops[view.slot].tolist(), says)

    def _partner(self, view: ShownView, image: int) -> Markup:
        mix = view.views.mix
        crop = [] if mix is None else view.views.crops[int(mix.partner[view.slot])].tolist()
        name = shortened(self.facts.names[int(self.facts.images.classes[image])])
        return self._framed(image, view.pictures.partner, crop, f"partner: {name}, with its crop")

    def _framed(self, image: int, uri: str | None, crop: list[int], says: str) -> Markup:
        images = self.facts.images
        height, width = int(images.heights[image]), int(images.widths[image])
        top, left, rows, columns = crop
        box = {"x": left, "y": top, "width": columns, "height": rows}
        return _picture(uri, height, width, says, box, "crop box")

    def _view(self, view: ShownView) -> Markup:
        how: Augmentation = self.facts.summary.augmentation
        mix = view.views.mix
        box = None
        says = "the view as the student sees it"
        if mix is not None and mix.box is not None:
            box = {
                "x": mix.box.left,
                "y": mix.box.top,
                "width": mix.box.right - mix.box.left,
                "height": mix.box.bottom - mix.box.top,
            }
            says += "; the partner's pixels are outlined"
        uri = view.pictures.view
        return _picture(uri, how.output_height, how.output_width, says, box, "CutMix region", kind="seen")

    # Labels

    def _bars(self, row: int, own: int, other: int | None) -> Markup:
        rows = self.sample.rows
        parts: list[str] = []
        numbers = []
        for place in range(rows.top.shape[1]):
            label = int(rows.top[row, place])
            share, value = float(rows.shares[row, place]), float(rows.values[row, place])
            before = float(rows.original[row, place])
            name = self.facts.names[label]
            mark = " \u2713 own" if label == own else " \u2713 partner's" if label == other else ""
            colour = 0 if label == own else 1 if label == other else 2
            text = "not finite" if np.isnan(share) else f"{share:.4f}"
            was = "" if np.isnan(before) else f", was {before:.4f}"
            top = place * _BAR_ROW
            parts.append(tag("text", shortened(name, 20), tag("tspan", mark), x=0, y=top + 13))
            parts.append(tag("text", text + was, x=WIDTH, y=top + 13, class_="end"))
            parts.append(tag("rect", x=0, y=top + 18, width=WIDTH, height=13, class_="track"))
            parts.append(
                tag(
                    "rect",
                    tag("title", f"{shortened(name)}: {text}{was}"),
                    x=0,
                    y=top + 18,
                    width=f"{WIDTH * np.nan_to_num(share):.3f}",
                    height=13,
                    class_=f"mark m{colour}",
                    data_label=label,
                    data_probability=f"{np.nan_to_num(share, nan=-1.0):.6f}",
                    data_stored=f"{np.nan_to_num(value, nan=-1.0):.6g}",
                )
            )
            if was:
                end = WIDTH * before
                parts.append(tag("path", d=f"M0 {top + 17}H{end:.1f}V{top + 32}H0z", class_="original"))
            numbers.append((shortened(name) + mark, text, f"{value:.5g}", f"{before:.4f}" if was else ""))
        says = "strongest labels as probabilities; \u2713 true classes" + (
            "; outlined: the original" if self.against else ""
        )
        height = rows.top.shape[1] * _BAR_ROW
        drawn = tag(
            "svg",
            tag("title", says),
            *parts,
            class_="chart bars",
            viewBox=f"0 0 {WIDTH} {height}",
            role="group",
            aria_label=says,
            data_marks=rows.top.shape[1],
        )
        return tag(
            "figure",
            drawn,
            tag("figcaption", says),
            folded("Numbers", table(("class", "probability", "stored", "original"), numbers, caption=says)),
        )


def _facts_line(view: ShownView, bits: float) -> str:
    views, slot = view.views, view.slot
    top, left, height, width = views.crops[slot].tolist()
    line = f"{views.key}, slot {slot}; crop {width} x {height} at ({left}, {top})"
    line += "; mirrored" if views.flips[slot] else "; not mirrored"
    if views.mix is not None:
        line += (
            f"; {'MixUp' if views.mix.box is None else 'CutMix'}, weight of its own {views.mix.strength:.3f}"
        )
    if views.cutout is not None:
        line += "; part painted over"
    return line + ("" if np.isnan(bits) else f"; entropy {bits:.2f} bits")


def _select(name: str, key: str, options: list[tuple[str, str]]) -> Markup:
    listed = [tag("option", "all", value="")]
    listed += [tag("option", shortened(text, 60), value=value) for value, text in options]
    return tag("label", f"{name} ", tag("select", *listed, data_filter=key, id=f"pick-{key}"))


def _picture(
    uri: str | None,
    height: int,
    width: int,
    says: str,
    box: dict[str, int] | None,
    box_says: str,
    kind: str = "source",
) -> Markup:
    parts: list[str] = [tag("title", says), tag("rect", x=0, y=0, width=width, height=height, class_="frame")]
    if uri is not None:
        parts.append(tag("image", href=uri, x=0, y=0, width=width, height=height))
    if box is not None:
        parts.append(tag("rect", class_="under", **box))
        parts.append(tag("rect", tag("title", box_says), class_="over", **box))
    coarse = " coarse" if max(height, width) < _COARSE_BELOW else ""
    drawn = tag(
        "svg",
        *parts,
        class_=f"picture {kind}{coarse}",
        viewBox=f"0 0 {width} {height}",
        role="group",
        aria_label=says,
    )
    return tag("figure", drawn, tag("figcaption", says if uri is not None else f"{says} (no image at hand)"))
