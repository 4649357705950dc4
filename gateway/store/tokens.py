"""Reading and writing tokens.  Plain functions over a session."""

from datetime import datetime

from sqlalchemy import ColumnElement, delete, insert, select, update
from sqlmodel import Session, col

from gateway.core.model import Token
from gateway.store.db import affected
from gateway.store.mapping import token_of
from gateway.store.tables import TokenRow


def add(session: Session, token: Token, sha256: str) -> None:
    """Writes a new token."""
    session.execute(
        insert(TokenRow).values(
            id=token.id,
            sha256=sha256,
            name=token.name,
            scope=token.scope,
            node_id=token.node_id,
            created_at=token.created_at,
            expires_at=token.expires_at,
        )
    )


def get(session: Session, token_id: str) -> Token | None:
    """The token of this id."""
    row = session.get(TokenRow, token_id)
    return None if row is None else token_of(row)


def of_secret(session: Session, sha256: str) -> Token | None:
    """The token whose secret has this hash."""
    row = session.scalars(select(TokenRow).where(col(TokenRow.sha256) == sha256)).first()
    return None if row is None else token_of(row)


def of_people(session: Session) -> list[Token]:
    """All tokens but those of nodes, oldest first."""
    statement = select(TokenRow).where(col(TokenRow.node_id).is_(None))
    return [token_of(row) for row in session.scalars(statement.order_by(col(TokenRow.created_at), col(TokenRow.id)))]


def revoke(session: Session, token_id: str, now: datetime) -> None:
    """Ends a token; one that has ended stays as it is."""
    _end(session, col(TokenRow.id) == token_id, now)


def revoke_of_node(session: Session, node_id: str, now: datetime) -> None:
    """Ends every credential of a node."""
    _end(session, col(TokenRow.node_id) == node_id, now)


def purge_of_nodes(session: Session, before: datetime) -> int:
    """Forgets the credentials of nodes that ended before that time; how many."""
    statement = (
        delete(TokenRow)
        .where(col(TokenRow.node_id).is_not(None), col(TokenRow.revoked_at) < before)
        .execution_options(synchronize_session=False)
    )
    return affected(session.execute(statement))


def _end(session: Session, which: ColumnElement[bool], now: datetime) -> None:
    session.execute(
        update(TokenRow)
        .where(which, col(TokenRow.revoked_at).is_(None))
        .values(revoked_at=now)
        .execution_options(synchronize_session=False)
    )
