"""What was run of each Kafka client, told by the checks themselves, as docs/COMPATIBILITY.md.

A check says what it has seen work (`record`), into the folder that BASALT_COMPATIBILITY names, if it names one. Then
`compatibility.py FOLDER` compares what was said with the document, and `compatibility.py FOLDER --write` writes it. A client that no check
could run on this machine is left as it stands."""

import json
import os
import pathlib
import sys

DOCUMENT = pathlib.Path(__file__).parents[2] / "docs" / "COMPATIBILITY.md"
FEATURES = [
    "codecs",
    "records",
    "where",
    "offsets",
    "times",
    "groups",
    "idempotent",
    "transactions",
    "administration",
    "SASL",
]
HEADING = """\
# Kafka clients that were run

Written by `tests/python/compatibility.py` from what the checks beside it saw, in CI, against a server of this tree; an empty cell was not
tried. *Records*: what came back byte for byte. *Where*: in which state of the topic it was read. What each check does stands at its top.

"""


def record(client: str, version: str, **features: str) -> None:
    """`client` did all that `features` say; names with dots or spaces stand in FEATURES and are given with underscores."""
    unknown = set(features) - set(FEATURES)
    if unknown:
        raise ValueError(f"no such features: {unknown}")
    folder = os.environ.get("BASALT_COMPATIBILITY")
    if folder:
        said = {"client": client, "version": version, "features": features}
        with open(pathlib.Path(folder) / "said.jsonl", "a") as file:
            file.write(json.dumps(said) + "\n")


def said(folder: pathlib.Path) -> dict[str, dict[str, str]]:
    """Each client's row; what several checks say of a feature stands side by side."""
    rows: dict[str, dict[str, str]] = {}
    path = folder / "said.jsonl"
    for line in path.read_text().splitlines() if path.exists() else []:
        told = json.loads(line)
        row = rows.setdefault(told["client"], {"version": told["version"]})
        if row["version"] != told["version"]:
            raise ValueError(f"{told['client']} has two versions: {row['version']} and {told['version']}")
        for feature, how in told["features"].items():
            row[feature] = f"{row[feature]}, {how}" if feature in row else how
    return rows


def written() -> dict[str, dict[str, str]]:
    """The rows of the document."""
    rows = {}
    for line in DOCUMENT.read_text().splitlines() if DOCUMENT.exists() else []:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 2 + len(FEATURES) and cells[0] != "client" and not cells[0].startswith("-"):
            row = {"version": cells[1]}
            row |= {feature: cell for feature, cell in zip(FEATURES, cells[2:]) if cell}
            rows[cells[0]] = row
    return rows


def document(rows: dict[str, dict[str, str]]) -> str:
    columns = ["client", "version", *FEATURES]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for client in sorted(rows, key=str.lower):
        row = rows[client]
        lines.append("| " + " | ".join([client, row["version"], *(row.get(feature, "") for feature in FEATURES)]) + " |")
    return HEADING + "\n".join(lines) + "\n"


def main() -> None:
    folder, *write = sys.argv[1:]
    before = written()
    now = before | said(pathlib.Path(folder))
    if write == ["--write"]:
        DOCUMENT.write_text(document(now))
        return
    differing = []
    for client, row in now.items():
        if client in before and before[client]["version"] != row["version"]:
            # A tool of the machine's own.
            print(f"note: {client} is {row['version']} here, {before[client]['version']} in the document")
            row["version"] = before[client]["version"]
        if before.get(client) != row:
            differing.append(client)
            print(f"{client}: the document says {before.get(client)}, the checks say {row}")
    if differing or DOCUMENT.read_text() != document(now):
        sys.exit(f"{DOCUMENT} is not what the checks say: run them with BASALT_COMPATIBILITY=FOLDER, then compatibility.py FOLDER --write")
    print(f"ok: {len(now)} clients are as the document says")


if __name__ == "__main__":
    main()
