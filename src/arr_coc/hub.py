"""Files, layers and models on a hub: reading and pushing by `huggingface_hub`, and their model cards.

- `HF_ENDPOINT`, `HF_TOKEN`, `HF_HOME` and `HF_HUB_OFFLINE` hold as in every program that uses `huggingface_hub`.
- One request of at most `SECONDS` decides whether a repository can be read. `huggingface_hub` by itself tries six times, half a
  minute in all, before it says that a name is wrong or that there is no network.
- Where the hub does not answer, files in the local cache are used, with a warning.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, TypedDict

from huggingface_hub import (
    HfApi,
    ModelCard,
    ModelCardData,
    ModelHubMixin,
    constants,
    errors,
    get_hf_file_metadata,
    hf_hub_download,
    hf_hub_url,
    try_to_load_from_cache,
)

from arr_coc.errors import ArrCocError, DataError, first_line

SECONDS = 5.0  # to wait for the first answer; HF_HUB_ETAG_TIMEOUT changes it
REPO_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)
SERVER_ERROR = 500  # and above: the hub itself failed
CARD = "README.md"
REPORT = "report.json"  # in the folder that `arr-coc eval --report` writes
MESSAGE = "Push with arr-coc"
TAGS = ("arr-coc", "token-pruning", "vision-language")
USAGE = {
    "layer": 'vlm = arr_coc.load("MODEL", layer="{repo}")  # MODEL: the one it was trained for',
    "model": 'vlm = arr_coc.load("{repo}")',
}


class HubOptions(TypedDict, total=False):
    """How to read a repository: the options that all loaders of `huggingface_hub` have."""

    revision: str | None
    token: str | bool | None
    cache_dir: str | Path | None
    local_files_only: bool
    force_download: bool


def split_options(options: Mapping[str, Any]) -> HubOptions:
    """Those of `from_pretrained`'s keyword arguments that say how to read a repository."""
    found = {name: options[name] for name in HubOptions.__annotations__ if options.get(name) is not None}
    return HubOptions(**found)  # type: ignore[typeddict-item]


def is_repo_id(name: object) -> bool:
    """Whether a name is "user/repository" and no file or folder here."""
    return isinstance(name, str) and REPO_ID.fullmatch(name) is not None and not Path(name).exists()


def reach(repo: str, file: str, kind: type[ArrCocError], options: HubOptions) -> HubOptions:
    """Ask the hub once for a file of a repository, which need not be there.

    Returns:
        The options for reading the repository: unchanged, or with `local_files_only` where the hub does not answer and the
        file is in the cache. Raises `kind` where the repository cannot be read at all.
    """
    if options.get("local_files_only"):
        return options
    url = hf_hub_url(repo, file, revision=options.get("revision"))
    try:
        get_hf_file_metadata(url, token=options.get("token"), timeout=_seconds())
        return options
    except errors.RemoteEntryNotFoundError:
        return options
    except Exception as error:
        why = explain(error)
        if not _no_answer(error):
            raise kind(f"cannot load {repo!r}: there is no such folder, and {why}") from None
    if _cached(repo, file, options) is None:
        raise kind(f"cannot load {repo!r}: there is no such folder, it is not in the local cache, and {why}") from None
    if not constants.is_offline_mode():
        warnings.warn(f"{why}: {repo!r} is read from the local cache", stacklevel=2)
    return HubOptions(**{**options, "local_files_only": True})


def fetch(repo: str, file: str, kind: type[ArrCocError], options: HubOptions) -> Path | None:
    """A file of a repository that was reached: its path in the local cache; None where the repository does not have it."""
    if options.get("local_files_only"):
        return _cached(repo, file, options)
    try:
        return Path(hf_hub_download(repo, file, **options))
    except errors.RemoteEntryNotFoundError:
        return None
    except Exception as error:
        raise kind(f"cannot load {file!r} of {repo!r}: {explain(error)}") from None


def explain(error: BaseException) -> str:
    """What an error of the hub means, and what to do."""
    hub = constants.ENDPOINT
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set"
    if isinstance(error, errors.LocalTokenNotFoundError):
        return "no token was found: log in with `hf auth login`, set HF_TOKEN, or pass token="
    if isinstance(error, errors.GatedRepoError):
        return f"access to it must be requested on its page at {hub} first"
    if isinstance(error, errors.RevisionNotFoundError):
        return "its repository has no such revision: check revision="
    if status == 401 and not isinstance(error, errors.RepositoryNotFoundError):
        return f"{hub} does not accept the token: log in with `hf auth login`, set HF_TOKEN, or pass token="
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"{hub} has no such repository for you: check the name, or log in with `hf auth login` if it is private"
    if status == 403:
        return f"{hub} does not allow it with this token: expected a token that may write there"
    if status is not None:
        return f"{hub} answers with an error ({status})"
    if _is_transport(error):
        return f"{hub} cannot be reached ({first_line(error)})"
    return first_line(error)


@contextmanager
def explained(kind: type[ArrCocError], what: str) -> Iterator[None]:
    """Raise any error inside the `with` as `kind`: `what`, and what the hub's error means."""
    try:
        yield
    except ArrCocError:
        raise
    except Exception as error:
        raise kind(f"{what}: {explain(_cause(error))}") from error


def push_folder(
    write: Callable[[Path], None],
    repo_id: str,
    kind: type[ArrCocError],
    *,
    private: bool | None = None,
    token: str | None = None,
    commit_message: str = MESSAGE,
    branch: str | None = None,
    create_pr: bool | None = None,
) -> str:
    """Push what `write` puts into an empty folder, in one commit; returns the commit's address."""
    with tempfile.TemporaryDirectory() as place, explained(kind, f"cannot push to {repo_id!r}"):
        api = HfApi(token=token)
        repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        write(Path(place))
        return str(
            api.upload_folder(
                repo_id=repo_id,
                folder_path=place,
                commit_message=commit_message,
                revision=branch,
                create_pr=create_pr,
            )
        )


class HubModule(ModelHubMixin, library_name="arr-coc", tags=list(TAGS)):
    """A module whose folder can be pushed: `_save_pretrained` writes the folder, `card_text` describes it.

    `save_pretrained` alone writes no card and no `config.json`: engines take a folder with one for a model.
    """

    hub_error: ClassVar[type[ArrCocError]] = ArrCocError

    def save_pretrained(  # type: ignore[override]
        self, folder: str | Path, *, config: Any = None, model_card_kwargs: Mapping[str, Any] | None = None
    ) -> None:
        """Write the module's files; `push_to_hub` passes the other arguments to add a card."""
        self._save_pretrained(Path(folder))
        if model_card_kwargs is not None:
            data = ModelCardData(library_name="arr-coc", tags=list(TAGS))
            write_card(Path(folder), card(data, self.card_text(), **model_card_kwargs))

    def card_text(self) -> str:
        """What the card says before usage and figures: Markdown with a title."""
        raise NotImplementedError

    def push_to_hub(  # type: ignore[override]
        self,
        repo_id: str,
        *,
        report: str | Path | None = None,
        private: bool | None = None,
        token: str | None = None,
        commit_message: str = MESSAGE,
        branch: str | None = None,
        create_pr: bool | None = None,
    ) -> str:
        """Push the files with a card, in one commit, and return the commit's address.

        Args:
            repo_id: "user/repository", which is created where it does not exist.
            report: A folder of `arr-coc eval --report`, whose figures the card shows.
            private: Create a private repository.
            token: A token that may write; by default the one of `hf auth login` or of `HF_TOKEN`.
            commit_message: The commit's message.
            branch: The branch to push to (main).
            create_pr: Open a pull request instead.
        """
        figures = measured(report)
        with explained(self.hub_error, f"cannot push to {repo_id!r}"):
            return str(
                super().push_to_hub(
                    repo_id, private=private, token=token, commit_message=commit_message, branch=branch,
                    create_pr=create_pr,
                    model_card_kwargs={"repo": repo_id, "what": "layer", "figures": figures},
                )
            )  # fmt: skip


def card(data: ModelCardData, text: str, repo: str, what: str, figures: str) -> str:
    """A model card: metadata, a text with its title, how to load it (`what`: a key of `USAGE`), and measured figures."""
    use = USAGE[what].format(repo=repo)
    body = f"{text.strip()}\n\n## Use\n\n```python\nimport arr_coc\n\n{use}\n```\n\n## Measured\n\n{figures}\n"
    return f"---\n{data.to_yaml()}\n---\n\n{body}"


def write_card(folder: Path, text: str) -> None:
    ModelCard(text).save(folder / CARD)


def measured(report: str | Path | None) -> str:
    """The figures of a folder that `arr-coc eval --report` wrote, as Markdown; a sentence where there is none."""
    if report is None:
        return "No figures were published with these files. `arr-coc eval DATA --report FOLDER` measures them."
    path = Path(report) / REPORT
    try:
        numbers = json.loads(path.read_text(encoding="utf-8"))
        rows = [
            f"| {one['selector']} | {one['budget']} | {_figure(one['accuracy'])} | {_figure(one['evidence_recall'])} |"
            for one in numbers["records"]
        ]
        title = (
            f"{numbers['questions']} questions about {len(numbers['images'])} pictures of `{numbers['data']}`, model "
            f"`{Path(numbers['model']).name}`, metric {numbers['metric']}; measured by `arr-coc eval`:"
        )
    except OSError as error:
        raise DataError(
            f"expected a folder of arr-coc eval --report, got {str(report)!r}: {error.strerror or error}"
        ) from None
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"expected the figures of arr-coc eval --report in {str(path)!r} ({error!r})") from None
    head = "| selector | budget | accuracy | evidence recall |\n|---|---|---|---|"
    return "\n".join([title, "", head, *rows])


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _seconds() -> float:
    return constants.HF_HUB_ETAG_TIMEOUT if "HF_HUB_ETAG_TIMEOUT" in os.environ else SECONDS


def _cached(repo: str, file: str, options: HubOptions) -> Path | None:
    found = try_to_load_from_cache(repo, file, options.get("cache_dir"), options.get("revision"))
    return Path(found) if isinstance(found, str) else None


def _is_transport(error: BaseException) -> bool:
    """Whether an error is of the connection. The client library differs between versions of huggingface_hub."""
    return type(error).__module__.startswith("httpx") or isinstance(error, ConnectionError | TimeoutError)


def _no_answer(error: BaseException) -> bool:
    """Whether an error says nothing about the repository, so that the cache may be used."""
    status = getattr(getattr(error, "response", None), "status_code", 0)
    return isinstance(error, errors.OfflineModeIsEnabled) or _is_transport(error) or status >= SERVER_ERROR


def _cause(error: BaseException) -> BaseException:
    """The error of the hub behind a general one."""
    while type(error) is RuntimeError and error.__cause__ is not None:
        error = error.__cause__
    return error
