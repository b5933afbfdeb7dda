//! One flag stops a connection, and four hooks read it (`DB-6`).
//!
//! | hook | what it ends |
//! |---|---|
//! | interrupt | the statement that runs now |
//! | progress handler | a statement that starts after the interrupt, which that did not hit |
//! | busy handler | the wait for a lock that another connection holds |
//! | commit hook | a short transaction that slips between two looks |
//!
//! A fifth, the authorizer, is asked about every statement as it is compiled, and notes the ones that change the session
//! itself, which outlives the job (`DB-3`).
//!
//! # Invariants
//!
//! 1. The flag is raised only while a call has the connection, and lowered only by whoever owns the
//!    connection alone.
//! 2. Nothing here blocks for longer than [`LONGEST_STEP`] without reading the flag.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::{Connection, InterruptHandle};

use crate::clock::{Clock, SystemClock, WaitCell};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};

/// How many steps of SQLite's machine pass between two looks at the flag: some microseconds, at a
/// cost that cannot be measured.
const STEPS_BETWEEN_LOOKS: i32 = 1_000;
/// The longest sleep before a lock is tried again. Whoever holds it may be another process, which
/// cannot tell that it let go.
const LONGEST_STEP: Duration = Duration::from_millis(5);

/// How a connection is stopped from another thread.
pub(super) struct Control {
    stop: AtomicBool,
    /// Moves when the flag is raised, and when a call or a session leaves the connection.
    pub(super) changed: Arc<WaitCell>,
    /// A statement was compiled that changes the session beyond its transaction.
    session_changed: AtomicBool,
    interrupt: InterruptHandle,
    clock: Arc<dyn Clock>,
    /// How long a call waits for another connection's lock.
    busy_wait: Duration,
    /// The instant at which the session that has the connection gives up waiting for locks.
    deadline: Mutex<Option<Instant>>,
}

impl Control {
    /// Installs the hooks on a connection that nobody has used.
    pub(super) fn install(
        connection: &mut Connection,
        busy_wait: Duration,
        clock: Arc<dyn Clock>,
    ) -> rusqlite::Result<Arc<Self>> {
        let control = Arc::new(Self {
            stop: AtomicBool::new(false),
            changed: WaitCell::new(),
            session_changed: AtomicBool::new(false),
            interrupt: connection.get_interrupt_handle(),
            clock,
            busy_wait,
            deadline: Mutex::new(None),
        });
        control.arm_busy_handler(connection)?;
        let progress = Arc::clone(&control);
        connection.progress_handler(STEPS_BETWEEN_LOOKS, Some(move || progress.is_raised()))?;
        let commit = Arc::clone(&control);
        connection.commit_hook(Some(move || commit.is_raised()))?;
        let noting = Arc::clone(&control);
        connection.authorizer(Some(move |asked: AuthContext<'_>| {
            if changes_session(&asked) {
                noting.session_changed.store(true, Ordering::SeqCst);
            }
            Authorization::Allow
        }))?;
        Ok(control)
    }

    /// Puts the busy handler in place, also when a job has replaced it by setting a busy timeout.
    pub(super) fn arm_busy_handler(
        self: &Arc<Self>,
        connection: &mut Connection,
    ) -> rusqlite::Result<()> {
        let control = Arc::clone(self);
        let mut since = None;
        connection.busy_handler(Some(move |attempt| {
            if attempt == 0 {
                since = None;
            }
            let began = *since.get_or_insert_with(|| SystemClock.now());
            control.wait_for_lock(attempt, began)
        }))
    }

    /// Sleeps a little for a lock that another connection holds; whether to try it again.
    ///
    /// On the system's time whatever the provider's clock is: the lock belongs to the operating
    /// system, and nobody moves that one.
    fn wait_for_lock(&self, attempt: i32, began: Instant) -> bool {
        let seen = self.changed.epoch();
        let now = SystemClock.now();
        let deadline = *self.deadline.lock();
        if self.is_raised()
            || now.saturating_duration_since(began) >= self.busy_wait
            || deadline.is_some_and(|deadline| self.clock.now() >= deadline)
        {
            return false;
        }
        let step = Duration::from_millis(u64::from(attempt.unsigned_abs()) + 1).min(LONGEST_STEP);
        SystemClock.wait_until(&self.changed, seen, now.checked_add(step));
        true
    }

    /// Stops the call that has the connection. To be repeated until it has left.
    pub(super) fn raise(&self) {
        if !self.stop.swap(true, Ordering::SeqCst) {
            self.changed.notify();
        }
        self.interrupt.interrupt();
    }

    /// Whether the session is another than it was before the job had it.
    pub(super) fn session_has_changed(&self) -> bool {
        self.session_changed.load(Ordering::SeqCst)
    }

    /// What comes from here on is the job's.
    pub(super) fn begin_session(&self) {
        self.session_changed.store(false, Ordering::SeqCst);
    }

    pub(super) fn lower(&self) {
        self.stop.store(false, Ordering::SeqCst);
    }

    fn is_raised(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    pub(super) fn set_deadline(&self, deadline: Option<Instant>) {
        *self.deadline.lock() = deadline;
    }
}

/// Pragmas that take a value and leave the session as it is: they look, or they change the file.
const HARMLESS_PRAGMAS: [&str; 15] = [
    "application_id",
    "foreign_key_check",
    "foreign_key_list",
    "incremental_vacuum",
    "index_info",
    "index_list",
    "index_xinfo",
    "integrity_check",
    "optimize",
    "quick_check",
    "table_info",
    "table_list",
    "table_xinfo",
    "user_version",
    "wal_checkpoint",
];

/// Whether a statement changes what the next job on the connection finds, in the session and not in the file.
fn changes_session(asked: &AuthContext<'_>) -> bool {
    let temporary = asked
        .database_name
        .is_some_and(|name| name.eq_ignore_ascii_case("temp"));
    match asked.action {
        AuthAction::Pragma {
            pragma_name,
            pragma_value,
        } => {
            pragma_value.is_some()
                && !HARMLESS_PRAGMAS
                    .iter()
                    .any(|harmless| pragma_name.eq_ignore_ascii_case(harmless))
        }
        AuthAction::Attach { .. } | AuthAction::Detach { .. } => true,
        AuthAction::Read { .. } | AuthAction::Select | AuthAction::Function { .. } => false,
        _ => temporary,
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control")
            .field("stop", &self.is_raised())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;

    #[test]
    fn an_interrupt_alone_stops_a_running_statement() {
        let mut connection = Connection::open_in_memory().unwrap();
        let control =
            Control::install(&mut connection, Duration::ZERO, Arc::new(SystemClock)).unwrap();
        connection
            .progress_handler(0, None::<fn() -> bool>)
            .unwrap();
        let (begun, running) = mpsc::channel();
        let job = thread::spawn(move || {
            begun.send(()).unwrap();
            connection.query_row(
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 9000000)
                 SELECT count(*) FROM n",
                [],
                |row| row.get::<_, i64>(0),
            )
        });
        running.recv().unwrap();
        while !job.is_finished() {
            control.raise();
            thread::yield_now();
        }
        let error = job.join().unwrap().unwrap_err();
        assert_eq!(
            error.sqlite_error_code(),
            Some(rusqlite::ErrorCode::OperationInterrupted)
        );
    }
}
