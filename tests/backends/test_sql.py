"""The SQL backend passes the contract, on a server of each kind."""

from __future__ import annotations

from typing import Any

import pytest

from distlock_web.testing.contract import StoreContract

#: None of the cases is about time-outs, and a busy machine lets a database stand still for longer than the defaults.
PATIENT = {"timeout": 5.0}


class TestSQLite(StoreContract):
    ttl = 0.8

    @pytest.fixture
    def settings(self, sqlite_settings: dict[str, Any]) -> dict[str, Any]:
        return {**sqlite_settings, "OPTIONS": PATIENT}


class TestPostgreSQL(StoreContract):
    ttl = 0.8  # a transaction is four requests

    @pytest.fixture
    def settings(self, postgres_settings: dict[str, Any]) -> dict[str, Any]:
        return {**postgres_settings, "OPTIONS": PATIENT}


class TestMariaDB(StoreContract):
    ttl = 0.8

    @pytest.fixture
    def settings(self, mariadb_settings: dict[str, Any]) -> dict[str, Any]:
        return {**mariadb_settings, "OPTIONS": PATIENT}


class TestSQLiteByDjango(StoreContract):
    ttl = 0.8

    @pytest.fixture
    def settings(self, sqlite_django_settings: dict[str, Any]) -> dict[str, Any]:
        return {**sqlite_django_settings, "OPTIONS": PATIENT}


class TestPostgreSQLByDjango(StoreContract):
    ttl = 0.8

    @pytest.fixture
    def settings(self, postgres_django_settings: dict[str, Any]) -> dict[str, Any]:
        return {**postgres_django_settings, "OPTIONS": PATIENT}


class TestMariaDBByDjango(StoreContract):
    ttl = 0.8

    @pytest.fixture
    def settings(self, mariadb_django_settings: dict[str, Any]) -> dict[str, Any]:
        return {**mariadb_django_settings, "OPTIONS": PATIENT}
