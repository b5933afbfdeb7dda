//! The database: paragraphs with a full-text index over them, and what the agents found out.

use std::path::Path;

use nucleo_runtime::JobError;
use nucleo_runtime::db::sqlite::rusqlite::{Connection, OpenFlags, Result, params};

use super::corpus::Document;

/// Says in the file's header whose it is: `docs`, in ASCII.
const APPLICATION_ID: i32 = 0x646f_6373;

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS documents (
        id INTEGER PRIMARY KEY,
        path TEXT NOT NULL UNIQUE
    );
    CREATE TABLE IF NOT EXISTS paragraphs (
        id INTEGER PRIMARY KEY,
        document INTEGER NOT NULL REFERENCES documents (id),
        place INTEGER NOT NULL,
        text TEXT NOT NULL,
        UNIQUE (document, place)
    );
    CREATE VIRTUAL TABLE IF NOT EXISTS paragraphs_index USING fts5 (
        text, content = 'paragraphs', content_rowid = 'id', tokenize = 'porter'
    );
    CREATE TRIGGER IF NOT EXISTS paragraph_added AFTER INSERT ON paragraphs BEGIN
        INSERT INTO paragraphs_index (rowid, text) VALUES (new.id, new.text);
    END;
    CREATE TRIGGER IF NOT EXISTS paragraph_removed AFTER DELETE ON paragraphs BEGIN
        INSERT INTO paragraphs_index (paragraphs_index, rowid, text)
        VALUES ('delete', old.id, old.text);
    END;
    CREATE TABLE IF NOT EXISTS analyses (
        path TEXT PRIMARY KEY,
        run TEXT NOT NULL,
        terms TEXT NOT NULL,
        summary TEXT NOT NULL
    );
    CREATE TABLE IF NOT EXISTS related (
        path TEXT NOT NULL,
        rank INTEGER NOT NULL,
        other TEXT NOT NULL,
        passage TEXT NOT NULL,
        PRIMARY KEY (path, rank)
    );
";

/// A paragraph of another document that speaks of the same.
#[derive(Clone, Debug)]
pub(crate) struct Passage {
    pub(crate) path: String,
    pub(crate) text: String,
}

/// Makes the tables, in a file that is new or was made here.
pub(crate) fn prepare(conn: &Connection) -> Result<(), JobError> {
    let owner: i32 = conn.query_row("PRAGMA application_id", [], |row| row.get(0))?;
    let tables: i64 = conn.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if owner != APPLICATION_ID && tables > 0 {
        return Err(JobError::invalid_input(
            "--db",
            conn.path().unwrap_or_default(),
            "is the database of another program; name a new file",
        ));
    }
    conn.pragma_update(None, "application_id", APPLICATION_ID)?;
    Ok(conn.execute_batch(SCHEMA)?)
}

/// Puts documents in, in place of those with the same path.
pub(crate) fn load<'a>(
    conn: &Connection,
    documents: impl Iterator<Item = &'a Document>,
) -> Result<()> {
    let mut document_id = conn.prepare(
        "INSERT INTO documents (path) VALUES (?1)
         ON CONFLICT (path) DO UPDATE SET path = excluded.path RETURNING id",
    )?;
    let mut clear = conn.prepare("DELETE FROM paragraphs WHERE document = ?1")?;
    let mut add =
        conn.prepare("INSERT INTO paragraphs (document, place, text) VALUES (?1, ?2, ?3)")?;
    for document in documents {
        let id: i64 = document_id.query_row([&document.path], |row| row.get(0))?;
        clear.execute([id])?;
        for (place, text) in (0_i64..).zip(&document.paragraphs) {
            add.execute(params![id, place, text])?;
        }
    }
    Ok(())
}

/// The passages of other documents that speak most of `query`, best first.
pub(crate) fn search(conn: &Connection, query: &str, except: &str) -> Result<Vec<Passage>> {
    const PASSAGES: i64 = 5;
    let mut search = conn.prepare_cached(
        "SELECT documents.path, paragraphs.text
         FROM paragraphs_index
         JOIN paragraphs ON paragraphs.id = paragraphs_index.rowid
         JOIN documents ON documents.id = paragraphs.document
         WHERE paragraphs_index MATCH ?1 AND documents.path <> ?2
         ORDER BY bm25(paragraphs_index), documents.path, paragraphs.place
         LIMIT ?3",
    )?;
    let passages = search.query_map(params![query, except, PASSAGES], |row| {
        Ok(Passage {
            path: row.get(0)?,
            text: row.get(1)?,
        })
    })?;
    passages.collect()
}

/// What an agent found out about a document.
#[derive(Clone, Debug)]
pub(crate) struct Findings {
    pub(crate) path: String,
    pub(crate) terms: String,
    pub(crate) summary: String,
    pub(crate) related: Vec<Passage>,
}

/// Saves findings, in place of those about the same path. To be called in a transaction.
pub(crate) fn save(conn: &Connection, run: &str, found: &Findings) -> Result<()> {
    conn.prepare_cached(
        "INSERT INTO analyses (path, run, terms, summary) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT (path) DO UPDATE
         SET run = excluded.run, terms = excluded.terms, summary = excluded.summary",
    )?
    .execute(params![found.path, run, found.terms, found.summary])?;
    conn.prepare_cached("DELETE FROM related WHERE path = ?1")?
        .execute([&found.path])?;
    let mut add = conn.prepare_cached(
        "INSERT INTO related (path, rank, other, passage) VALUES (?1, ?2, ?3, ?4)",
    )?;
    for (rank, passage) in (0_i64..).zip(&found.related) {
        add.execute(params![found.path, rank, passage.path, passage.text])?;
    }
    Ok(())
}

/// How many documents a run has saved, by a connection of its own.
pub(crate) fn count_saved(database: &Path, run: &str) -> Result<i64> {
    Connection::open_with_flags(database, OpenFlags::SQLITE_OPEN_READ_ONLY)?.query_row(
        "SELECT count(*) FROM analyses WHERE run = ?1",
        [run],
        |row| row.get(0),
    )
}
