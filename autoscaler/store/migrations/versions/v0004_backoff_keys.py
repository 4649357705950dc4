"""What a back-off holds back, in parts instead of one phrase."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

REST = ("until", "failures", "failed_at", "reason")


def upgrade() -> None:
    """Keep every back-off: what is held back must not be tried at once by a new version."""
    rows = op.get_bind().execute(sa.text("SELECT * FROM backoff")).mappings().all()
    op.drop_table("backoff")
    table = op.create_table(
        "backoff",
        sa.Column("kind", sa.String(), primary_key=True),
        sa.Column("owner", sa.String(), primary_key=True),
        sa.Column("item", sa.String(), primary_key=True),
        sa.Column("until", sa.Float(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("failed_at", sa.Float(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
    )
    op.bulk_insert(table, [_parts(row["key"]) | {name: row[name] for name in REST} for row in rows])


def _parts(phrase: str) -> dict[str, str]:
    """Return the parts of a key that 0001 stored as a phrase, such as ``hetzner offer cx22@fsn1``."""
    match phrase.split(" "):
        case ["clock"]:
            found = ("clock", "", "")
        case ["pool", pool]:
            found = ("pool", pool, "")
        case ["closing", "of", "pool", pool]:
            found = ("closing", pool, "")
        case ["sweep", "of", provider, *thing]:
            found = ("sweep", provider, " ".join(thing))
        case [provider, "location" | "offer" as kind, *item]:
            found = (kind, provider, " ".join(item))
        case _:
            found = ("provider", phrase, "")
    return dict(zip(("kind", "owner", "item"), found, strict=True))
