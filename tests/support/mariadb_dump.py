"""A small dump for MariaDB, and the one record of a result."""

from qguide.training.environments.intercode_sql.database import QueryResult

DUMP = """
CREATE USER 'admin'@'%' IDENTIFIED BY 'admin'; GRANT ALL PRIVILEGES ON *.* TO 'admin'@'%';
CREATE DATABASE shop; USE shop;
CREATE TABLE item (id INT PRIMARY KEY, name VARCHAR(20) NOT NULL, price DECIMAL(5, 2));
INSERT INTO item VALUES (1, 'rope', 2.5), (2, 'lamp', 10);
CREATE DATABASE vault; CREATE TABLE vault.gold (bars INT);
CREATE DATABASE my_till; CREATE DATABASE myxtill; CREATE TABLE myxtill.gold (bars INT);
CREATE DATABASE `my%till`;
"""


def only(result: QueryResult) -> tuple[object, ...]:
    """The one record of a result."""
    assert result.records is not None, result.error
    (record,) = result.records
    return record
