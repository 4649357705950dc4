"""Read and write tokens: plain functions over a session."""

from dataclasses import fields
from datetime import datetime
from typing import Final

from sqlalchemy import ColumnElement, delete, insert, select, update
from sqlmodel import Session, col

from gateway.core.model import Token
from gateway.store.db import affected
from gateway.store.tables import SecretRow, TokenRow


def add(session: Session, token: Token, sha256: str) -> None:
    """Write a new token."""
    session.execute(
        insert(TokenRow).values(
            id=token.id,
            sha256=sha256,
            name=token.name,
            scope=token.scope,
            node_id=token.node_id,
            created_at=token.created_at,
            expires_at=token.expires_at,
            tenant=token.tenant,
        )
    )


def get(session: Session, token_id: str) -> Token | None:
    """Return the token of this id."""
    row = session.get(TokenRow, token_id)
    return None if row is None else _token_of(row)


def of_secret(session: Session, sha256: str) -> Token | None:
    """Return the token whose secret has this hash."""
    row = session.scalars(select(TokenRow).where(col(TokenRow.sha256) == sha256)).first()
    return None if row is None else _token_of(row)


def of_people(session: Session) -> list[Token]:
    """Return all tokens but those of nodes, oldest first."""
    statement = select(TokenRow).where(col(TokenRow.node_id).is_(None))
    return [_token_of(row) for row in session.scalars(statement.order_by(col(TokenRow.created_at), col(TokenRow.id)))]


def revoke(session: Session, token_id: str, now: datetime) -> None:
    """Revoke a token; one that was revoked before stays as it is."""
    _revoke(session, col(TokenRow.id) == token_id, now)


def revoke_of_node(session: Session, node_id: str, now: datetime) -> None:
    """Revoke every credential of a node."""
    _revoke(session, col(TokenRow.node_id) == node_id, now)


def purge_of_nodes(session: Session, before: datetime) -> int:
    """Delete the credentials of nodes that were revoked before that time; return how many."""
    statement = (
        delete(TokenRow)
        .where(col(TokenRow.node_id).is_not(None), col(TokenRow.revoked_at) < before)
        .execution_options(synchronize_session=False)
    )
    return affected(session.execute(statement))


def _revoke(session: Session, which: ColumnElement[bool], now: datetime) -> None:
    session.execute(
        update(TokenRow)
        .where(which, col(TokenRow.revoked_at).is_(None))
        .values(revoked_at=now)
        .execution_options(synchronize_session=False)
    )


def _token_of(row: TokenRow) -> Token:
    return Token(**{field.name: getattr(row, field.name) for field in fields(Token)})


# -- the secret of all gateways on one database -----------------------------------------------------------------------

_CONTROL: Final = "control"


def secret_fingerprint(session: Session) -> tuple[str, str] | None:
    """Return the salt and the hash of the gateways' secret; ``None`` before the first of them has started."""
    row = session.get(SecretRow, _CONTROL)
    return None if row is None else (row.salt, row.scrypt)


def add_secret_fingerprint(session: Session, salt: str, scrypt: str) -> None:
    """Write the salt and the hash of the gateways' secret, once."""
    session.execute(insert(SecretRow).values(name=_CONTROL, salt=salt, scrypt=scrypt))
