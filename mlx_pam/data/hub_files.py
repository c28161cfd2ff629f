"""The files of a data set of the hub, to be read over the network as they are needed."""

from __future__ import annotations

from mlx_pam.data.documents import JSON_LINES, TABLES, split_readers
from mlx_pam.data.files import plain_name
from mlx_pam.data.hub import HubText, Unreachable
from mlx_pam.data.hub_file import HubFile, brief
from mlx_pam.data.streamed import Files
from mlx_pam.errors import DataError

KINDS = (*TABLES, *JSON_LINES)


def hub_files(text: HubText) -> Files:
    """Where the text is at its commit. Raises `DataError` where its files hold no documents."""
    commit = text.commit()
    try:
        text.ask_hub(commit)
    except Unreachable as error:
        raise text.cannot_be_had(error) from error
    addresses = text.choose_splits(_addresses(text, commit))
    addresses.pop("test", None)
    files = {split: [_checked(text, each) for each in of] for split, of in addresses.items()}
    found = split_readers(files, column=text.column, look=False)  # one of them, not thousands
    count = sum(map(len, files.values()))
    return Files(
        name=text.name,
        description=f"{text.describe(commit)}, files: {count}{found.note}",
        readers=found.readers,
        identity=text.identify(commit),
        commit=commit,
    )


def _addresses(text: HubText, commit: str) -> dict[str, list[str]]:
    from datasets import load_dataset_builder

    try:
        builder = load_dataset_builder(text.repository, text.config, revision=commit)
    except Exception as error:  # of the network, the format, the configuration
        raise DataError(f"{text.name} cannot be loaded: {brief(error)}") from error
    files = builder.config.data_files or {}
    return {str(split): list(map(str, addresses)) for split, addresses in files.items()}


def _checked(text: HubText, address: str) -> HubFile:
    file = HubFile(address)
    if plain_name(file).suffix.lower() not in KINDS:
        raise DataError(
            f"the files of {text.name} must be {', '.join(KINDS)} to be streamed, got {address}: "
            "leave --stream out"
        )
    return file
