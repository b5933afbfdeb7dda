//! What a job has of a SQLite database.

use std::fmt;
use std::sync::Arc;

use rusqlite::Connection;

use super::session::Session;
use crate::db::DbManagedResource;
use crate::error::JobError;

/// A job's session on a SQLite database.
///
/// A clone is the same session. [`with`](Self::with) lends the connection for one call.
#[derive(Clone)]
pub struct SqliteHandle {
    session: Arc<Session>,
}

impl SqliteHandle {
    pub(super) fn new(session: Session) -> Self {
        Self {
            session: Arc::new(session),
        }
    }

    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    /// Runs `call` on the connection and maps what the driver refuses.
    ///
    /// Outside of a transaction each statement commits by itself. A transaction of the runtime's
    /// is not to be ended here; savepoints are the job's own. Leave `busy_timeout` alone: it would
    /// make a wait for a lock deaf to a timeout until the end of the call. Another thread's call
    /// on the same handle is waited for.
    ///
    /// ```
    /// # use nucleo_runtime::db::{DbResourceProvider, sqlite::SqliteProvider};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let orders = SqliteProvider::open(folder.path().join("orders.db"))?;
    /// # let handle = orders.acquire(false, None)?;
    /// let count: i64 = handle.with(|conn| {
    ///     conn.execute_batch("CREATE TABLE orders (number TEXT)")?;
    ///     conn.query_row("SELECT count(*) FROM orders", [], |row| row.get(0))
    /// })?;
    /// assert_eq!(count, 0);
    /// # orders.close(&handle)?;
    /// # Ok::<(), nucleo_runtime::JobError>(())
    /// ```
    ///
    /// # Errors
    /// `ExternalService` when the database or its file is at fault (locked, corrupt, unreachable);
    /// `Uncorrectable` for a statement that it refuses; `IllegalState` for a write under a
    /// read-only declaration, for a call inside a call, and when the handle is closed, also while
    /// the call runs.
    ///
    /// # Panics
    /// When `call` does. The connection is rolled back and discarded then, and the handle dead.
    pub fn with<R>(
        &self,
        call: impl FnOnce(&Connection) -> rusqlite::Result<R>,
    ) -> Result<R, JobError> {
        self.session.call(call, |subject, error, read_only| {
            subject.driver_failure(error, read_only)
        })
    }

    /// As [`with`](Self::with), for a call with errors of its own. Those pass as they are, but for
    /// those of the driver that `?` turned into a [`JobError`], which are told as `with` tells them.
    ///
    /// # Errors
    /// Those of `call`, and those of [`with`](Self::with).
    ///
    /// # Panics
    /// As [`with`](Self::with).
    pub fn try_with<R, E: Into<JobError>>(
        &self,
        call: impl FnOnce(&Connection) -> Result<R, E>,
    ) -> Result<R, JobError> {
        self.session.call(call, |subject, error, read_only| {
            subject.place(error.into(), read_only)
        })
    }

    /// Whether no further call will be served.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.session.has_ended()
    }
}

impl DbManagedResource for SqliteHandle {
    fn provider(&self) -> &str {
        &self.session.subject().name
    }
}

impl fmt::Debug for SqliteHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteHandle")
            .field("provider", &self.provider())
            .field("closed", &self.is_closed())
            .finish_non_exhaustive()
    }
}
