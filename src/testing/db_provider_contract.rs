//! The rules that every [`DbResourceProvider`] keeps, run against a real database (`DB-7`).
//!
//! Say in a [`DbFixture`] how to write, read and stall on your database, and call [`check`] from a
//! test. It plays the part of the runtime: it takes permits before handles, closes every handle,
//! and lets some of many jobs fail, panic and be aborted.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::admission::{DatabaseGate, RateLimiter};
use crate::clock::{Clock, SystemClock};
use crate::db::{Abort, DbResourceProvider, HeldPermit};
use crate::error::{ErrorKind, JobError};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Condvar, Mutex};

/// The handle of the provider of a fixture.
pub type Handle<F> = <<F as DbFixture>::Provider as DbResourceProvider>::Handle;

/// How [`check`] works with a provider and the database behind it.
pub trait DbFixture: Sync {
    /// The implementation under test.
    type Provider: DbResourceProvider;

    /// A provider on a database that has an empty table of keys. The same one at every call.
    fn provider(&self) -> &Arc<Self::Provider>;

    /// Another provider of the same type, whose handles the first one is to refuse.
    fn another(&self) -> Arc<Self::Provider>;

    /// Adds a key to the table.
    ///
    /// # Errors
    /// What the handle answers.
    fn write(&self, handle: &Handle<Self>, key: u64) -> Result<(), JobError>;

    /// Whether the key is in the table, as this handle sees it.
    ///
    /// # Errors
    /// What the handle answers.
    fn has(&self, handle: &Handle<Self>, key: u64) -> Result<bool, JobError>;

    /// Runs `begun` and then, in the same call on the connection, a statement that takes minutes.
    ///
    /// # Errors
    /// What the handle answers.
    fn stall(&self, handle: &Handle<Self>, begun: &dyn Fn()) -> Result<(), JobError>;

    /// Adds a key to the table and then, in the same call on the connection, calls [`unwind`].
    fn panic_inside(&self, handle: &Handle<Self>, key: u64);

    /// How many connections jobs have, and the most that were ever open.
    fn connections(&self) -> Connections;

    /// The error of an acquisition from a server that is not there, where one can be had.
    fn unreachable(&self) -> Option<JobError> {
        None
    }

    /// How many jobs to run through the provider. Default: 10 000.
    fn jobs(&self) -> u64 {
        10_000
    }
}

/// The connections of a provider, orphans included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connections {
    /// Those that jobs have now.
    pub out: u32,
    /// The most that were ever open at once, idle ones included.
    pub peak: u32,
}

/// Unwinds as a panic does, without its message.
pub fn unwind() -> ! {
    resume_unwind(Box::new("a panic inside of a call"))
}

/// Longer than any abort takes, shorter than a statement that [`DbFixture::stall`] runs.
const GRACE: Duration = Duration::from_secs(30);

/// The keys up to here are those of the single checks.
const SOAK_KEYS: u64 = 1_000;

/// Runs every rule that can be checked without a dispatcher.
///
/// # Panics
/// When a rule is broken; the message says which.
pub fn check<F: DbFixture>(fixture: &F) {
    let bench = Bench::new(fixture);
    bench.a_close_gives_back();
    bench.a_commit_is_visible_and_nothing_before_it();
    bench.an_end_without_a_commit_rolls_back();
    bench.read_only_does_not_stick();
    bench.a_foreign_handle_is_refused();
    bench.an_aborted_handle_is_dead();
    bench.an_abort_stops_a_running_statement();
    bench.an_orphan_keeps_its_permit();
    bench.a_panic_never_commits();
    bench.nothing_leaks_over_many_jobs();
    if let Some(error) = fixture.unreachable() {
        demand(
            matches!(error.kind(), ErrorKind::ExternalService { .. }),
            "a server that is not there is an `ExternalService` failure",
        );
    }
}

fn demand(holds: bool, rule: &str) {
    assert!(holds, "broken rule: {rule}");
}

/// What must succeed for a rule to be checked at all.
fn works<T>(result: Result<T, JobError>, what: &str) -> T {
    result.unwrap_or_else(|error| panic!("{what} failed: {error:?}"))
}

/// The runtime's part: permits, and waiting for them.
struct Bench<'f, F: DbFixture> {
    fixture: &'f F,
    desk: Arc<Desk>,
}

struct Desk {
    gates: Vec<Arc<DatabaseGate>>,
    open: Mutex<()>,
    permit_returned: Condvar,
}

/// Permits of one job. Its drop gives them back.
struct Permits {
    desk: Arc<Desk>,
    gates: usize,
}

impl Drop for Permits {
    fn drop(&mut self) {
        let open = self.desk.open.lock();
        for gate in &self.desk.gates[..self.gates] {
            gate.give(&[()], SystemClock.now());
        }
        drop(open);
        self.desk.permit_returned.notify_all();
    }
}

impl Desk {
    /// Waits for one permit of each of the first `gates` gates, and takes all or none.
    fn permits(self: &Arc<Self>, gates: usize) -> Permits {
        let wanted = &self.gates[..gates];
        let now = SystemClock.now();
        let mut open = self.open.lock();
        while !wanted.iter().all(|gate| gate.available() > 0) {
            demand(
                SystemClock.now() < now + GRACE,
                "permits come back when the connections of their jobs are gone",
            );
            self.permit_returned.wait_until(&mut open, now + GRACE);
        }
        for gate in wanted {
            let took = works(gate.try_take(&[()], &[], now), "taking a permit");
            demand(took, "a gate with a permit left gives it");
        }
        Permits {
            desk: Arc::clone(self),
            gates,
        }
    }
}

impl<'f, F: DbFixture> Bench<'f, F> {
    fn new(fixture: &'f F) -> Self {
        let provider = fixture.provider();
        let mut gates = vec![provider.admission()];
        demand(
            gates[0].name() == format!("db:{}", provider.name()),
            "the gate is named `db:<name>`",
        );
        gates.extend(provider.write_admission());
        Self {
            fixture,
            desk: Arc::new(Desk {
                gates,
                open: Mutex::default(),
                permit_returned: Condvar::new(),
            }),
        }
    }

    fn provider(&self) -> &F::Provider {
        self.fixture.provider()
    }

    /// Runs `body` with a handle under its permits, and closes it whatever happens.
    fn job<R>(&self, read_only: bool, body: impl FnOnce(&Handle<F>) -> R) -> R {
        let gates = if read_only { 1 } else { self.desk.gates.len() };
        let permits = self.desk.permits(gates);
        let provider = self.provider();
        let handle = works(provider.acquire(read_only, None), "acquiring a handle");
        let result = catch_unwind(AssertUnwindSafe(|| body(&handle)));
        let closed = provider.close(&handle);
        provider.keep_until_gone(&handle, HeldPermit::new(permits));
        match result {
            Ok(result) => {
                works(closed, "closing a handle");
                result
            }
            Err(panic) => resume_unwind(panic),
        }
    }

    fn sees(&self, key: u64) -> bool {
        self.job(true, |handle| {
            works(self.fixture.has(handle, key), "a read")
        })
    }

    fn begin_and_write(&self, handle: &Handle<F>, key: u64) {
        works(self.provider().begin(handle), "beginning");
        works(self.fixture.write(handle, key), "a write");
    }

    fn commit(&self, handle: &Handle<F>) {
        works(self.provider().commit(handle), "committing");
        works(self.provider().await_visible(handle), "awaiting visibility");
    }

    fn nothing_is_out(&self, rule: &str) {
        demand(self.fixture.connections().out == 0, rule);
        demand(self.desk.gates.iter().all(|gate| gate.in_use() == 0), rule);
    }

    fn a_close_gives_back(&self) {
        self.job(false, |_| {
            demand(
                self.fixture.connections().out <= 1,
                "a job has one connection",
            );
        });
        self.nothing_is_out("a close gives the connection back");
    }

    fn a_commit_is_visible_and_nothing_before_it(&self) {
        self.job(false, |handle| {
            self.begin_and_write(handle, 1);
            if self.provider().admission().capacity() > 1 {
                demand(
                    !self.sees(1),
                    "what is not committed is visible to nobody else",
                );
            }
            self.commit(handle);
            demand(
                self.fixture.connections().out >= 1,
                "a commit does not give the connection back",
            );
            if self.provider().admission().capacity() > 1 {
                demand(self.sees(1), "a commit is visible once it was awaited");
            }
        });
        demand(self.sees(1), "the next job sees a commit");
        self.nothing_is_out("a close gives the connection back");
    }

    fn an_end_without_a_commit_rolls_back(&self) {
        let provider = self.provider();
        self.job(false, |handle| {
            works(provider.rollback(handle), "a rollback before the begin");
            self.begin_and_write(handle, 2);
            works(provider.rollback(handle), "a rollback");
            works(provider.rollback(handle), "a second rollback");
            works(provider.begin(handle), "a begin after a rollback");
        });
        self.job(false, |handle| {
            self.begin_and_write(handle, 3);
            works(provider.close(handle), "a close with a transaction open");
            works(provider.close(handle), "a second close");
            demand(
                self.fixture.write(handle, 3).is_err(),
                "a closed handle serves no call",
            );
        });
        demand(!self.sees(2), "a rollback undoes what was written");
        demand(!self.sees(3), "a close undoes what was not committed");
        self.nothing_is_out("a close gives the connection back once");
    }

    fn read_only_does_not_stick(&self) {
        self.job(true, |handle| {
            demand(
                self.fixture.write(handle, 4).is_err(),
                "a handle that was declared read-only refuses a write",
            );
        });
        // As many sessions as there can be connections: one of them has the same again.
        for turn in 0..u64::from(self.provider().admission().capacity()) {
            self.job(false, |handle| {
                works(
                    self.fixture.write(handle, 100 + turn),
                    "a write on a connection that was read-only before",
                );
            });
        }
        demand(self.sees(100), "without a transaction a statement commits");
    }

    fn a_foreign_handle_is_refused(&self) {
        let another = self.fixture.another();
        self.job(false, |handle| {
            let deadline = SystemClock.now() + GRACE;
            let refused = another.begin(handle).is_err()
                && another.commit(handle).is_err()
                && another.await_visible(handle).is_err()
                && another.rollback(handle).is_err()
                && another.abort(handle, deadline).is_err()
                && another.close(handle).is_err();
            demand(refused, "a handle of another provider is refused");
            works(self.fixture.has(handle, 1).map(drop), "a read afterwards");
        });
    }

    fn abort(&self, handle: &Handle<F>, deadline: Instant) -> Abort {
        works(self.provider().abort(handle, deadline), "an abort")
    }

    fn an_aborted_handle_is_dead(&self) {
        self.job(false, |handle| {
            self.begin_and_write(handle, 5);
            let deadline = SystemClock.now() + GRACE;
            for _ in 0..2 {
                demand(
                    self.abort(handle, deadline) == Abort::Severed,
                    "an abort of an idle handle severs it",
                );
            }
            demand(
                self.fixture.has(handle, 1).is_err() && self.provider().commit(handle).is_err(),
                "an aborted handle serves nothing",
            );
        });
        demand(!self.sees(5), "an abort commits nothing");
        self.nothing_is_out("a close after an abort gives the connection back");
    }

    fn an_abort_stops_a_running_statement(&self) {
        let (began, ended) = (SystemClock.now(), Mutex::new(None));
        self.job(false, |handle| {
            self.begin_and_write(handle, 6);
            let (begun, running) = mpsc::sync_channel(1);
            thread::scope(|scope| {
                scope.spawn(|| {
                    let outcome = self.fixture.stall(handle, &|| {
                        let _ = begun.send(());
                    });
                    *ended.lock() = Some(outcome);
                });
                demand(running.recv().is_ok(), "the long statement begins");
                demand(
                    self.abort(handle, began + GRACE) == Abort::Severed,
                    "an abort frees the server of a long statement within the grace",
                );
            });
        });
        let failed = matches!(&*ended.lock(), Some(Err(_)));
        demand(failed, "an aborted statement fails");
        demand(!self.sees(6), "an aborted statement commits nothing");
        self.nothing_is_out("an abort frees the connection");
    }

    fn an_orphan_keeps_its_permit(&self) {
        let provider = self.provider();
        let permits = self.desk.permits(self.desk.gates.len());
        let handle = works(provider.acquire(false, None), "acquiring a handle");
        let (begun, running) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let (returned, when_returned) = mpsc::channel::<()>();
        thread::scope(|scope| {
            let stuck = &handle;
            scope.spawn(move || {
                let _ = self.fixture.stall(stuck, &|| {
                    let _ = begun.send(());
                    let _ = released.recv();
                });
            });
            demand(running.recv().is_ok(), "the long statement begins");
            demand(
                self.abort(&handle, SystemClock.now()) == Abort::Orphaned,
                "an abort that a call outlasts answers `Orphaned`",
            );
            works(provider.close(&handle), "a close after an abort");
            provider.keep_until_gone(&handle, HeldPermit::new((permits, returned)));
            let gate = &self.desk.gates[0];
            demand(
                gate.in_use() == 1 && self.fixture.connections().out == 1,
                "an orphan keeps its permit and counts as a connection",
            );
            demand(gate.orphaned() == 1, "the gate shows an orphan");
            drop(release);
            // Ends when the sender is dropped, right after the permits.
            let _ = when_returned.recv();
            demand(gate.orphaned() == 0, "the gate shows an orphan no longer");
        });
        self.nothing_is_out("an orphan leaves when its call does");
    }

    fn a_panic_never_commits(&self) {
        self.job(false, |handle| {
            works(self.provider().begin(handle), "beginning");
            self.panic_inside(handle, 7);
            // A job may catch its own panic and go on. What it had open must not come through.
            let committed = self.provider().commit(handle);
            demand(
                committed.is_err(),
                "a transaction that a panic went through cannot be committed",
            );
        });
        for _ in 0..self.provider().admission().capacity() {
            self.job(false, |handle| {
                works(self.provider().begin(handle), "beginning after a panic");
                self.commit(handle);
            });
        }
        demand(!self.sees(7), "a panic undoes what was not committed");
        self.nothing_is_out("a panic gives the connection back");
    }

    fn panic_inside(&self, handle: &Handle<F>, key: u64) {
        let call = AssertUnwindSafe(|| self.fixture.panic_inside(handle, key));
        demand(
            catch_unwind(call).is_err(),
            "a panic goes through to the job",
        );
    }

    /// Twice as many threads as permits, and jobs that end in every way there is.
    fn nothing_leaks_over_many_jobs(&self) {
        let bound = self.provider().admission().capacity();
        let next = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..2 * bound {
                scope.spawn(|| {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= self.fixture.jobs() {
                            return;
                        }
                        self.one_of_many(number);
                    }
                });
            }
        });
        self.nothing_is_out("no connection and no permit leaks over many jobs");
        demand(
            self.fixture.connections().peak <= bound,
            "there are never more connections than permits",
        );
    }

    fn one_of_many(&self, number: u64) {
        let key = SOAK_KEYS + number;
        let commits = match number % 8 {
            0 => {
                self.job(false, |handle| {
                    self.begin_and_write(handle, key);
                    works(self.provider().rollback(handle), "a rollback");
                });
                false
            }
            1 => {
                self.job(false, |handle| {
                    works(self.provider().begin(handle), "beginning");
                    self.panic_inside(handle, key);
                });
                false
            }
            2 => {
                self.job(false, |handle| {
                    self.begin_and_write(handle, key);
                    let _ = self.abort(handle, SystemClock.now() + GRACE);
                });
                false
            }
            3 | 4 => {
                self.job(false, |handle| {
                    self.begin_and_write(handle, key);
                    self.commit(handle);
                });
                true
            }
            _ => false,
        };
        demand(
            self.sees(key) == commits,
            "the next job sees what was committed, and nothing else",
        );
    }
}
