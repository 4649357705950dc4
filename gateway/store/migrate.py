"""Brings a database to the schema of this version, inside the caller's transaction."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection


class SchemaError(Exception):
    """The database has a schema that this version does not know."""


def migrate(connection: Connection) -> None:
    """Runs every migration that the database lacks.

    Raises:
        SchemaError: it was written by a newer version.
    """
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    script = ScriptDirectory.from_config(config)
    present = MigrationContext.configure(connection).get_current_heads()
    unknown = [head for head in present if head not in {revision.revision for revision in script.walk_revisions()}]
    if unknown:
        raise SchemaError(
            f"it was written by a newer version (schema {unknown[0]}, this version knows {script.get_current_head()});"
            " install that version again, or restore a backup from before the update"
        )
    if set(present) != set(script.get_heads()):
        command.upgrade(config, "head")
