//! SQLite through `rusqlite`, compiled in (`DB-6`, `DB-6a`). Feature `sqlite`.
//!
//! A file in WAL mode has one writer and any number of readers. Both are accounts of admission: a
//! job takes a permit of `db:<name>`, and one that is not read-only the permit of
//! `db:<name>:write` as well. So jobs never wait for each other inside of SQLite, where a wait
//! would hold whatever else they were granted; only another process can make one wait there, for
//! [`busy_wait`](SqliteBuilder::busy_wait) at most.
//!
//! ```
//! use nucleo_runtime::db::{DbResourceProvider, sqlite::SqliteProvider};
//!
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("orders.db");
//! let orders = SqliteProvider::builder(path)
//!     .max_connections(3)
//!     .on_open(|conn| conn.execute_batch("PRAGMA foreign_keys = on"))
//!     .open()?;
//! assert_eq!(orders.name(), "orders");
//! assert_eq!(orders.admission().capacity(), 3);
//! # Ok::<(), nucleo_runtime::JobError>(())
//! ```

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use rusqlite;
use rusqlite::Connection;

use self::connection::Opening;
use self::failure::Subject;
use self::pool::Pool;
use self::session::Session;
use super::{Abort, DbResourceProvider, HeldPermit, foreign_handle};
use crate::admission::{CountingGate, DatabaseGate};
use crate::clock::{Clock, SystemClock};
use crate::error::{JobError, ResultExt};

mod connection;
mod failure;
mod handle;
mod hooks;
mod pool;
mod session;
mod transaction;

pub use handle::SqliteHandle;
pub use pool::SqliteStats;

/// Readers that are worth having on one file: past the cores of a small machine they only queue
/// for the disk.
const DEFAULT_MAX_CONNECTIONS: u32 = 4;
/// Long enough for another process's transaction, short enough to be told soon.
const DEFAULT_BUSY_WAIT: Duration = Duration::from_secs(5);

/// A SQLite file whose connections jobs hold one at a time.
///
/// Wrap it in an [`Arc`]: jobs declare it by that.
pub struct SqliteProvider {
    pool: Arc<Pool>,
}

/// The settings of a [`SqliteProvider`].
#[must_use = "`open` makes the provider"]
pub struct SqliteBuilder {
    path: PathBuf,
    name: Option<String>,
    max_connections: u32,
    opening: Opening,
}

impl SqliteProvider {
    /// Opens the file at `path`, and makes it if it is not there, with the settings that
    /// [`builder`](Self::builder) starts from.
    ///
    /// # Errors
    /// As for [`SqliteBuilder::open`].
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, JobError> {
        Self::builder(path).open()
    }

    /// Settings for the file at `path`.
    pub fn builder(path: impl Into<PathBuf>) -> SqliteBuilder {
        SqliteBuilder {
            path: path.into(),
            name: None,
            max_connections: DEFAULT_MAX_CONNECTIONS,
            opening: Opening {
                busy_wait: DEFAULT_BUSY_WAIT,
                clock: Arc::new(SystemClock),
                on_open: None,
            },
        }
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.pool.subject.path
    }

    /// What was measured since it was opened.
    #[must_use]
    pub fn stats(&self) -> SqliteStats {
        self.pool.stats()
    }

    fn own<'h>(&self, handle: &'h SqliteHandle) -> Result<&'h Session, JobError> {
        let session = handle.session();
        if session.belongs_to(&self.pool) {
            Ok(session)
        } else {
            Err(foreign_handle(self.name(), handle))
        }
    }
}

impl SqliteBuilder {
    /// The provider's name, which its gates and errors carry. Default: the file's name without its
    /// extension.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// How many connections there are at most, and so how many jobs hold one at a time. At least
    /// one. Default: 4.
    pub fn max_connections(mut self, max: u32) -> Self {
        self.max_connections = max;
        self
    }

    /// How long a call waits for a lock of another process before it fails; a job's deadline or
    /// abort ends the wait sooner. Zero: it fails at once. Default: 5 s.
    pub fn busy_wait(mut self, wait: Duration) -> Self {
        self.opening.busy_wait = wait;
        self
    }

    /// Runs on each new connection before a job has it: for pragmas, functions, the schema. Default:
    /// nothing.
    pub fn on_open(
        mut self,
        prepare: impl Fn(&Connection) -> rusqlite::Result<()> + Send + Sync + 'static,
    ) -> Self {
        self.opening.on_open = Some(Arc::new(prepare));
        self
    }

    /// The clock that deadlines are compared with and [`SqliteStats`] measured by. Give it the
    /// dispatcher's. Default: the system's.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.opening.clock = clock;
        self
    }

    /// Opens the first connection, so that a file that cannot serve is found out here.
    ///
    /// # Errors
    /// `InvalidInput` naming the setting and its rule; `ExternalService` when the file cannot be
    /// opened or is no database.
    pub fn open(self) -> Result<SqliteProvider, JobError> {
        let path = self.path.as_os_str().as_encoded_bytes();
        if path.is_empty() || path == b":memory:" || path.starts_with(b"file:") {
            return Err(JobError::invalid_input(
                "path",
                self.path.display(),
                "must name a file, not a URI or a database in memory: there every connection \
                 would have one of its own",
            ));
        }
        if self.max_connections == 0 {
            return Err(JobError::invalid_input(
                "max_connections",
                self.max_connections,
                "must be at least 1",
            ));
        }
        let name = self.name.unwrap_or_else(|| {
            let stem = self.path.file_stem().unwrap_or_default();
            stem.to_string_lossy().into_owned()
        });
        let gate = CountingGate::database(&name, self.max_connections)?;
        let write_gate = CountingGate::database_writer(&name)?;
        // Connections are opened later too, when the working directory may be another.
        let path = std::path::absolute(&self.path).for_parameter("path", self.path.display())?;
        let subject = Subject {
            name: name.into(),
            path: path.into(),
        };
        let pool = Pool::new(subject, self.opening, Arc::new(gate), Arc::new(write_gate));
        pool.put(pool.take(false, None)?);
        Ok(SqliteProvider {
            pool: Arc::new(pool),
        })
    }
}

impl DbResourceProvider for SqliteProvider {
    type Handle = SqliteHandle;

    fn name(&self) -> &str {
        &self.pool.subject.name
    }

    fn admission(&self) -> Arc<DatabaseGate> {
        Arc::clone(&self.pool.gate)
    }

    fn write_admission(&self) -> Option<Arc<DatabaseGate>> {
        Some(Arc::clone(&self.pool.write_gate))
    }

    fn acquire(
        &self,
        read_only: bool,
        deadline: Option<Instant>,
    ) -> Result<SqliteHandle, JobError> {
        Session::enter(&self.pool, read_only, deadline).map(SqliteHandle::new)
    }

    fn begin(&self, handle: &SqliteHandle) -> Result<(), JobError> {
        self.own(handle)?.begin()
    }

    fn commit(&self, handle: &SqliteHandle) -> Result<(), JobError> {
        self.own(handle)?.commit()
    }

    /// Returns at once. A `COMMIT` in WAL mode returns only after its last frame is in the log and
    /// the shared index of the log points past it, and a transaction that begins on any connection
    /// afterwards starts from that index.
    fn await_visible(&self, handle: &SqliteHandle) -> Result<(), JobError> {
        self.own(handle).map(drop)
    }

    fn rollback(&self, handle: &SqliteHandle) -> Result<(), JobError> {
        self.own(handle)?.rollback()
    }

    fn close(&self, handle: &SqliteHandle) -> Result<(), JobError> {
        self.own(handle)?.close()
    }

    fn abort(&self, handle: &SqliteHandle, deadline: Instant) -> Result<Abort, JobError> {
        Ok(self.own(handle)?.abort(deadline))
    }

    fn keep_until_gone(&self, handle: &SqliteHandle, permit: HeldPermit) {
        if let Ok(session) = self.own(handle) {
            session.keep_until_gone(permit);
        }
    }
}

impl fmt::Debug for SqliteProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteProvider")
            .field("name", &self.name())
            .field("path", &self.path())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for SqliteBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteBuilder")
            .field("path", &self.path)
            .field("name", &self.name)
            .field("max_connections", &self.max_connections)
            .field("busy_wait", &self.opening.busy_wait)
            .finish_non_exhaustive()
    }
}
