//! One connection: how it is opened, entered by a session, and left.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rusqlite::{Connection, OpenFlags};

use super::failure::Subject;
use super::hooks::Control;
use super::pool::Slot;
use crate::clock::Clock;
use crate::error::JobError;

type OnOpen = Arc<dyn Fn(&Connection) -> rusqlite::Result<()> + Send + Sync>;

/// How connections of a provider are opened.
#[derive(Clone)]
pub(super) struct Opening {
    pub(super) busy_wait: Duration,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) on_open: Option<OnOpen>,
}

/// An open connection. The fields drop in this order: the connection is closed, then its slot
/// comes back.
pub(super) struct Conn {
    raw: Connection,
    control: Arc<Control>,
    _slot: Slot,
}

impl Conn {
    /// Opens the file in WAL mode, in which readers and the one writer do not wait for each other.
    pub(super) fn open(
        slot: Slot,
        subject: &Subject,
        opening: &Opening,
        deadline: Option<Instant>,
    ) -> Result<Self, JobError> {
        let driver = |error| subject.driver_failure(error, false);
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut raw = Connection::open_with_flags(&subject.path, flags).map_err(driver)?;
        let control = Control::install(&mut raw, opening.busy_wait, Arc::clone(&opening.clock))
            .map_err(driver)?;
        control.set_deadline(deadline);
        let mode: String = raw
            .pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))
            .map_err(driver)?;
        if !mode.eq_ignore_ascii_case("wal") {
            return Err(subject.unusable(&format!(
                "its journal stays in mode '{mode}' where WAL is needed: put it on a local file \
                 system"
            )));
        }
        if let Some(on_open) = &opening.on_open {
            on_open(&raw).map_err(driver)?;
        }
        Ok(Self {
            raw,
            control,
            _slot: slot,
        })
    }

    /// Readies the connection for a session.
    pub(super) fn enter(
        &mut self,
        read_only: bool,
        deadline: Option<Instant>,
    ) -> rusqlite::Result<()> {
        self.control.set_deadline(deadline);
        if read_only {
            self.raw.pragma_update(None, "query_only", true)?;
        }
        self.control.begin_session();
        Ok(())
    }

    /// Puts the connection back to how the pool keeps it, and answers whether it can: not when the job changed
    /// the session by a pragma, something attached or something temporary. After an error it is in doubt.
    pub(super) fn leave(&mut self, read_only: bool) -> rusqlite::Result<bool> {
        self.control.lower();
        self.rollback()?;
        if self.control.session_has_changed() {
            return Ok(false);
        }
        if read_only {
            self.raw.pragma_update(None, "query_only", false)?;
        }
        Ok(true)
    }

    /// Readies the connection for one call and lends it.
    pub(super) fn for_call(&mut self) -> rusqlite::Result<&Connection> {
        self.control.arm_busy_handler(&mut self.raw)?;
        Ok(&self.raw)
    }

    pub(super) fn rollback(&self) -> rusqlite::Result<()> {
        if self.raw.is_autocommit() {
            return Ok(());
        }
        self.raw.execute_batch("ROLLBACK")
    }

    pub(super) fn control(&self) -> &Arc<Control> {
        &self.control
    }
}

impl fmt::Debug for Conn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Conn")
    }
}
