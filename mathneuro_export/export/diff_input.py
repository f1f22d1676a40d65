"""What `diff`, `combine` and `export-mask` read: a manifest and the masks beside it, held against each other."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mathneuro_export.checkpoint.hub import local_run
from mathneuro_export.checkpoint.regular import quote
from mathneuro_export.errors import Error
from mathneuro_export.export.manifest import Manifest, TensorEntry, digest_of, parse, read_document
from mathneuro_export.export.work import OUT, RUN
from mathneuro_export.masks.mask import Mask
from mathneuro_export.masks.maskfile import MaskFile

_MASKS, _STATISTICS = "masks.safetensors", "statistics.safetensors"


@dataclass(frozen=True, slots=True)
class Input:
    """An opened RUN, OUT or manifest; no mask has been read.

    Attributes:
        spec: what the caller named it.
        folder: where manifest, masks and statistics lie.
        document: the manifest as written.
        manifest: its typed form.
        masks: None where there is no such file.
        statistics: None where there is no such file.
    """

    spec: str
    folder: Path
    document: dict[str, Any]
    manifest: Manifest
    masks: MaskFile | None
    statistics: Path | None

    @property
    def tensors(self) -> dict[str, TensorEntry]:
        """The targets by name on disk."""
        return self.manifest.tensors

    def mask(self, name: str) -> Mask:
        """The mask of one target, checked against the manifest's shape and digest.

        Raises:
            Error: it is missing, damaged, or another run's.
        """
        if self.masks is None:
            raise no_masks(self)
        entry = self.tensors[name]
        mask = self.masks.read(name, entry.shape)
        check_digest(self, name, mask)
        return mask


def no_masks(item: Input) -> Error:
    """The refusal of a RUN whose masks are needed and not there."""
    return Error(
        f"{item.spec}: {_MASKS} is missing beside its manifest; fetch the whole RUN, or make the masks again with"
        " `identify MODEL --from` it"
    )


def check_digest(item: Input, name: str, mask: Mask) -> None:
    """Refuse a mask that is not the one the manifest names.

    Raises:
        Error: its digest is another.
    """
    wanted = item.tensors[name].mask
    if mask.digest != wanted:
        raise Error(
            f"{item.spec}: the mask of {quote(name)} has digest {mask.digest}, its manifest says {wanted}; the masks"
            " are damaged or another run's, run `mathneuro-export verify` on it"
        )


def open_any(spec: str | Path) -> Input:
    """Open a RUN or an OUT, local or on the Hub, or the path of a manifest with the masks beside it.

    Raises:
        Error: nothing of the kind is there, the manifest is damaged, of another schema, or differs from its own
            digest, or the masks are those of other targets.
    """
    path, said = local_run(spec).folder, str(spec)
    manifest_path = _locate(path, said)
    document = read_document(manifest_path)
    manifest = parse(document, f"{said}: {manifest_path.name}")
    if digest_of(document) != manifest.digest:
        raise Error(
            f"{said}: {manifest_path.name} differs from its own digest, so it was changed after it was written; make"
            " the RUN anew"
        )
    if not manifest.tensors:
        raise Error(f"{said}: {manifest_path.name} names no target, expected at least one; make the RUN anew")
    folder = manifest_path.parent
    masks = MaskFile(folder / _MASKS) if (folder / _MASKS).exists() else None
    if masks is not None:
        _check_names(said, manifest, masks)
    statistics = folder / _STATISTICS
    return Input(said, folder, document, manifest, masks, statistics if statistics.is_file() else None)


def _locate(path: Path, said: str) -> Path:
    if path.is_file():
        return path
    if path.is_dir():
        for layout in (OUT, RUN):
            if (path / layout.manifest).is_file():
                return path / layout.manifest
        raise Error(
            f"{said}: holds neither {RUN.manifest} (a RUN) nor {OUT.manifest} (an OUT); name a folder that `identify`,"
            " `scale`, `prune` or `apply` finished"
        )
    raise Error(f"{said}: no such file or folder, expected a RUN, an OUT or a manifest.json; check the path")


def _check_names(said: str, manifest: Manifest, masks: MaskFile) -> None:
    differ = manifest.tensors.keys() ^ set(masks.names)
    if differ:
        name = min(differ)
        where = "no mask" if name in manifest.tensors else "a mask and no target"
        raise Error(
            f"{said}: {quote(name)} has {where} ({len(differ)} such names): {_MASKS} and manifest are of different"
            " runs; restore both from the same RUN"
        )
