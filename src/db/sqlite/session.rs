//! A job's session on a connection, and its end from any thread (`DB-2`).
//!
//! # Invariants
//!
//! 1. The connection is in one place: [`Here`](Place::Here), [`Lent`](Place::Lent) to one call,
//!    [`Leaving`](Place::Leaving) in the hands of whoever ends the session, or
//!    [`Gone`](Place::Gone). It never comes back from the last two.
//! 2. Once `end` is set no call begins, and a connection that comes back from a call leaves.
//! 3. The lock is held for single steps. Calls of the job, statements and drops of connections and
//!    permits run outside of it. So a second call from inside a call is an error and no deadlock.
//! 4. `changed` moves after every change of place and of `end`, after the lock.
//! 5. Permits are dropped after the connection has left, whoever makes it leave.

use std::sync::Arc;
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use rusqlite::Connection;

use super::connection::Conn;
use super::failure::Subject;
use super::hooks::Control;
use super::pool::Pool;
use crate::admission::DatabaseGate;
use crate::clock::{Clock, SystemClock};
use crate::db::{Abort, HeldPermit};
use crate::error::JobError;
use crate::sync::Mutex;

/// How long an abort waits for the call to leave before it interrupts again. An interrupt that
/// falls between two statements is lost.
const INTERRUPT_AGAIN: Duration = Duration::from_millis(5);

pub(super) struct Session {
    pool: Arc<Pool>,
    control: Arc<Control>,
    read_only: bool,
    acquired_at: Instant,
    state: Mutex<State>,
}

struct State {
    place: Place,
    end: Option<End>,
    /// Whether the runtime's transaction was begun and neither committed nor rolled back.
    begun: bool,
    orphaned: bool,
    permits: Vec<HeldPermit>,
}

enum Place {
    Here(Conn),
    Lent(ThreadId),
    Leaving,
    Gone,
}

/// Why a session ended. A graver reason, which is the greater, replaces a lighter one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Closed,
    Panicked,
    Aborted,
}

/// The connection while one call has it. Dropped before [`finish`](Self::finish), by a panic, it
/// ends the session.
pub(super) struct Lent<'s> {
    session: &'s Session,
    conn: Option<Conn>,
    since: Instant,
}

impl Lent<'_> {
    pub(super) fn connection(&mut self) -> rusqlite::Result<&Connection> {
        match &mut self.conn {
            Some(conn) => conn.for_call(),
            None => Err(rusqlite::Error::InvalidQuery),
        }
    }

    pub(super) fn rollback(&self) -> rusqlite::Result<()> {
        self.conn.as_ref().map_or(Ok(()), Conn::rollback)
    }

    /// Gives the connection back; why the session has ended meanwhile, if it has.
    fn finish(mut self) -> Option<End> {
        self.give_back(None)
    }

    fn give_back(&mut self, end: Option<End>) -> Option<End> {
        let conn = self.conn.take()?;
        let session = self.session;
        let ran = session
            .pool
            .clock
            .now()
            .saturating_duration_since(self.since);
        session.pool.meter.in_call(ran);
        session.take_back(conn, end)
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.give_back(Some(End::Panicked));
    }
}

impl Session {
    pub(super) fn enter(
        pool: &Arc<Pool>,
        read_only: bool,
        deadline: Option<Instant>,
    ) -> Result<Self, JobError> {
        let conn = pool.take(read_only, deadline)?;
        Ok(Self {
            control: Arc::clone(conn.control()),
            acquired_at: pool.clock.now(),
            pool: Arc::clone(pool),
            read_only,
            state: Mutex::new(State {
                place: Place::Here(conn),
                end: None,
                begun: false,
                orphaned: false,
                permits: Vec::new(),
            }),
        })
    }

    pub(super) fn subject(&self) -> &Subject {
        &self.pool.subject
    }

    pub(super) fn read_only(&self) -> bool {
        self.read_only
    }

    pub(super) fn has_ended(&self) -> bool {
        self.state.lock().end.is_some()
    }

    pub(super) fn belongs_to(&self, pool: &Arc<Pool>) -> bool {
        Arc::ptr_eq(&self.pool, pool)
    }

    pub(super) fn call<R, E>(
        &self,
        call: impl FnOnce(&Connection) -> Result<R, E>,
        explain: impl FnOnce(&Subject, E, bool) -> JobError,
    ) -> Result<R, JobError> {
        let mut lent = self.lend()?;
        let result = match lent.connection() {
            Ok(connection) => {
                call(connection).map_err(|error| explain(&self.pool.subject, error, self.read_only))
            }
            Err(error) => Err(self.pool.subject.driver_failure(error, self.read_only)),
        };
        self.settle(lent, result)
    }

    /// Ends a call. What the database did is told as it is; a failure of a session that was ended
    /// meanwhile is told as that.
    pub(super) fn settle<R>(
        &self,
        lent: Lent<'_>,
        result: Result<R, JobError>,
    ) -> Result<R, JobError> {
        match (result, lent.finish()) {
            (Err(error), Some(end)) => Err(self.ended(end).with_source(error)),
            (result, _) => result,
        }
    }

    pub(super) fn has_begun(&self) -> bool {
        self.state.lock().begun
    }

    pub(super) fn set_begun(&self, begun: bool) {
        self.state.lock().begun = begun;
    }

    /// Takes the connection for one call, after the call of another thread if need be.
    pub(super) fn lend(&self) -> Result<Lent<'_>, JobError> {
        let me = thread::current().id();
        loop {
            let seen = self.control.changed.epoch();
            {
                let mut state = self.state.lock();
                if let Some(end) = state.end {
                    return Err(self.ended(end));
                }
                match std::mem::replace(&mut state.place, Place::Lent(me)) {
                    Place::Here(conn) => {
                        return Ok(Lent {
                            session: self,
                            conn: Some(conn),
                            since: self.pool.clock.now(),
                        });
                    }
                    Place::Lent(to) if to == me => return Err(self.inside_a_call()),
                    elsewhere => state.place = elsewhere,
                }
            }
            self.pool
                .clock
                .wait_until(&self.control.changed, seen, None);
        }
    }

    /// The connection comes back from a call, with the end that the call made, if it made one.
    fn take_back(&self, conn: Conn, end: Option<End>) -> Option<End> {
        let (end, leaving) = {
            let mut state = self.state.lock();
            state.end = state.end.max(end);
            match state.end {
                None => {
                    state.place = Place::Here(conn);
                    (None, None)
                }
                Some(end) => {
                    state.place = Place::Leaving;
                    (Some(end), Some(conn))
                }
            }
        };
        self.control.changed.notify();
        if let (Some(end), Some(conn)) = (end, leaving)
            && let Err(error) = self.leave(conn, end)
        {
            crate::aside::warn!("{error}");
        }
        end
    }

    pub(super) fn close(&self) -> Result<(), JobError> {
        let leaving = {
            let mut state = self.state.lock();
            let end = *state.end.get_or_insert(End::Closed);
            match std::mem::replace(&mut state.place, Place::Leaving) {
                Place::Here(conn) => Some((conn, end)),
                Place::Lent(to) => {
                    state.place = Place::Lent(to);
                    self.control.raise();
                    None
                }
                elsewhere => {
                    state.place = elsewhere;
                    None
                }
            }
        };
        self.control.changed.notify();
        leaving.map_or(Ok(()), |(conn, end)| self.leave(conn, end))
    }

    pub(super) fn abort(&self, deadline: Instant) -> Abort {
        loop {
            let seen = self.control.changed.epoch();
            let leaving = {
                let mut state = self.state.lock();
                if matches!(state.place, Place::Gone) {
                    return Abort::Severed;
                }
                state.end = state.end.max(Some(End::Aborted));
                match std::mem::replace(&mut state.place, Place::Leaving) {
                    Place::Here(conn) => Some(conn),
                    elsewhere => {
                        if matches!(elsewhere, Place::Lent(_)) {
                            self.control.raise();
                        }
                        state.place = elsewhere;
                        if self.pool.clock.now() >= deadline {
                            self.orphan(&mut state);
                            return Abort::Orphaned;
                        }
                        None
                    }
                }
            };
            if let Some(conn) = leaving {
                self.control.changed.notify();
                // Closing a connection rolls back what its rollback could not.
                let _ = self.leave(conn, End::Aborted);
                return Abort::Severed;
            }
            // On the system's time: a statement runs on it, whatever the provider's clock is.
            let again = SystemClock.now().checked_add(INTERRUPT_AGAIN);
            SystemClock.wait_until(&self.control.changed, seen, again);
        }
    }

    pub(super) fn keep_until_gone(&self, permit: HeldPermit) {
        let gone = {
            let mut state = self.state.lock();
            match state.place {
                Place::Gone => Some(permit),
                _ => {
                    state.permits.push(permit);
                    None
                }
            }
        };
        drop(gone);
    }

    fn orphan(&self, state: &mut State) {
        if !std::mem::replace(&mut state.orphaned, true) {
            for gate in self.gates() {
                gate.mark_orphaned();
            }
        }
    }

    /// The gates of which this session's job has a permit.
    fn gates(&self) -> impl Iterator<Item = &DatabaseGate> {
        let writer = (!self.read_only).then_some(&*self.pool.write_gate);
        std::iter::once(&*self.pool.gate).chain(writer)
    }

    /// Makes the connection leave: back to the pool when it is sound, else away.
    fn leave(&self, mut conn: Conn, end: End) -> Result<(), JobError> {
        let put_back = conn.leave(self.read_only);
        if end == End::Closed && matches!(put_back, Ok(true)) {
            self.pool.put(conn);
        } else {
            drop(conn);
        }
        let now = self.pool.clock.now();
        self.pool
            .meter
            .held(now.saturating_duration_since(self.acquired_at));
        let permits = {
            let mut state = self.state.lock();
            state.place = Place::Gone;
            if std::mem::take(&mut state.orphaned) {
                for gate in self.gates() {
                    gate.clear_orphaned();
                }
            }
            std::mem::take(&mut state.permits)
        };
        self.control.changed.notify();
        drop(permits);
        match put_back {
            Err(error) if end == End::Closed => {
                Err(self.pool.subject.driver_failure(error, self.read_only))
            }
            _ => Ok(()),
        }
    }

    fn ended(&self, end: End) -> JobError {
        let name = &self.pool.subject.name;
        JobError::illegal_state(match end {
            End::Closed => format!(
                "the handle on the database '{name}' is closed: its job has ended or was told to \
                 stop"
            ),
            End::Panicked => format!(
                "a call on the database '{name}' panicked: its connection was rolled back and \
                 discarded, and the handle is dead"
            ),
            End::Aborted => format!(
                "the connection to the database '{name}' was severed: its job did not stop in time"
            ),
        })
    }

    fn inside_a_call(&self) -> JobError {
        JobError::illegal_state(format!(
            "a call on the database '{}' began inside a call on the same handle: use the connection \
             that the outer one has",
            self.pool.subject.name
        ))
    }
}

impl Drop for Session {
    /// A session that nobody closed gives its connection back.
    fn drop(&mut self) {
        let place = std::mem::replace(&mut self.state.get_mut().place, Place::Leaving);
        if let Place::Here(conn) = place
            && let Err(error) = self.leave(conn, End::Closed)
        {
            crate::aside::warn!("{error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::DbResourceProvider;
    use crate::db::sqlite::SqliteProvider;
    use std::sync::mpsc;

    fn provider(folder: &tempfile::TempDir) -> SqliteProvider {
        SqliteProvider::builder(folder.path().join("orders.db"))
            .busy_wait(Duration::from_secs(3_600))
            .on_open(|conn| conn.execute_batch("CREATE TABLE IF NOT EXISTS keys (key INTEGER)"))
            .open()
            .unwrap()
    }

    fn keys(provider: &SqliteProvider) -> i64 {
        let reader = provider.acquire(true, None).unwrap();
        reader
            .with(|conn| conn.query_row("SELECT count(*) FROM keys", [], |row| row.get(0)))
            .unwrap()
    }

    #[test]
    fn a_wait_for_the_lock_of_another_connection_ends_at_an_abort() {
        let folder = tempfile::tempdir().unwrap();
        let provider = provider(&folder);
        let outside = Connection::open(provider.path()).unwrap();
        outside.execute_batch("BEGIN IMMEDIATE").unwrap();
        for end_by_close in [true, false] {
            let handle = provider.acquire(false, None).unwrap();
            thread::scope(|scope| {
                let begin = scope.spawn(|| provider.begin(&handle));
                // It sleeps in the busy handler, an hour from giving up.
                handle.session().control.changed.wait_quiet(&SystemClock);
                if end_by_close {
                    provider.close(&handle).unwrap();
                } else {
                    let deadline = Instant::now() + Duration::from_secs(60);
                    assert_eq!(provider.abort(&handle, deadline).unwrap(), Abort::Severed);
                }
                begin.join().unwrap().unwrap_err();
            });
        }
        assert_eq!(provider.stats().open, provider.stats().idle);
    }

    #[test]
    fn a_short_transaction_after_the_stop_is_vetoed() {
        let folder = tempfile::tempdir().unwrap();
        let provider = provider(&folder);
        let handle = provider.acquire(false, None).unwrap();
        let control = Arc::clone(&handle.session().control);
        let slipped = handle.with(|conn| {
            control.raise();
            conn.execute_batch("BEGIN; INSERT INTO keys VALUES (1); COMMIT")
        });
        assert!(slipped.is_err());
        provider.close(&handle).unwrap();
        assert_eq!(keys(&provider), 0);
    }

    #[test]
    fn a_statement_that_starts_after_the_interrupt_is_stopped_by_the_progress_handler() {
        let folder = tempfile::tempdir().unwrap();
        let provider = provider(&folder);
        let handle = provider.acquire(false, None).unwrap();
        let control = Arc::clone(&handle.session().control);
        let stopped = handle.with(|conn| {
            control.raise();
            conn.query_row(
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000000)
                 SELECT count(*) FROM n",
                [],
                |row| row.get::<_, i64>(0),
            )
        });
        assert!(stopped.is_err());
    }

    #[test]
    fn a_permit_handed_over_after_the_end_is_dropped_at_once() {
        struct Signal(mpsc::Sender<()>);
        impl Drop for Signal {
            fn drop(&mut self) {
                let _ = self.0.send(());
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let provider = provider(&folder);
        let handle = provider.acquire(false, None).unwrap();
        let (dropped, when_dropped) = mpsc::channel();
        provider.keep_until_gone(&handle, HeldPermit::new(Signal(dropped.clone())));
        assert!(when_dropped.try_recv().is_err());
        provider.close(&handle).unwrap();
        assert!(when_dropped.try_recv().is_ok());
        provider.keep_until_gone(&handle, HeldPermit::new(Signal(dropped)));
        assert!(when_dropped.try_recv().is_ok());
    }

    /// Who ends a session, and when, is up to the threads; that it ends once is not.
    #[test]
    fn however_calls_and_ends_interleave_the_connection_leaves_once() {
        let folder = tempfile::tempdir().unwrap();
        let provider = provider(&folder);
        let mut committed = 0;
        for round in 0..300 {
            let handle = provider.acquire(false, None).unwrap();
            let (returned, when_returned) = mpsc::channel::<()>();
            let deadline = Instant::now() + Duration::from_secs(60);
            thread::scope(|scope| {
                let job = scope.spawn(|| {
                    provider.begin(&handle)?;
                    handle.with(|conn| conn.execute("INSERT INTO keys VALUES (1)", []))?;
                    provider.commit(&handle)
                });
                if round % 3 != 0 {
                    scope.spawn(|| provider.close(&handle).unwrap());
                }
                if round % 3 != 1 {
                    let (provider, handle) = (&provider, &handle);
                    scope.spawn(move || {
                        assert_eq!(provider.abort(handle, deadline).unwrap(), Abort::Severed);
                    });
                }
                provider.keep_until_gone(&handle, HeldPermit::new(returned));
                committed += i64::from(job.join().unwrap().is_ok());
            });
            // The sender goes with the permit.
            assert!(when_returned.recv().is_err());
            assert!(handle.is_closed());
            let stats = provider.stats();
            assert_eq!(stats.open, stats.idle);
            assert_eq!(provider.admission().orphaned(), 0);
        }
        assert_eq!(keys(&provider), committed);
        assert_eq!(provider.stats().peak_open, 1);
    }
}
