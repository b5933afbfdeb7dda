//! How spend gates hear that a job has ended (`COST-3`), and that none keeps a job from ending.
//!
//! # Invariants
//!
//! 1. A gate is called on threads of its own, one job at a time on each, under none of the runtime's
//!    locks. Whoever settles a job waits for all of them together, and for no longer than
//!    [`PATIENCE`].
//! 2. A call that took longer is left to its thread. Once all threads of a gate are taken by such
//!    calls nobody waits for it until one of them comes back: so what a gate can put off, over all
//!    jobs together, is a patience for each of its threads.
//! 3. Every job is told to every gate once, late or not, as long as the gate's threads come back.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::reaper::Pool;
use crate::clock::{Clock, WaitCell};
use crate::events::ModelCall;
use crate::job::JobSnapshot;
use crate::job::behalf;
use crate::job::core::JobCore;
use crate::models::SpendGate;
use crate::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use crate::threads::Seat;
use crate::unwind::contain;

/// How long the end of a job waits for spend gates: long for books, short for a shutdown.
pub(super) const PATIENCE: Duration = Duration::from_millis(500);

pub(super) struct Books {
    desks: Vec<Desk>,
    clock: Arc<dyn Clock>,
}

/// A gate and the threads that call it.
struct Desk {
    gate: Arc<dyn SpendGate>,
    pool: Arc<Pool>,
    threads: usize,
    /// How many calls took too long and are not back.
    overdue: Arc<AtomicUsize>,
}

impl Books {
    /// `seats` are the threads of each gate, in turn.
    pub(super) fn new(
        clock: Arc<dyn Clock>,
        gates: Vec<Arc<dyn SpendGate>>,
        mut seats: impl FnMut() -> Vec<Seat>,
    ) -> Self {
        let desks = gates
            .into_iter()
            .map(|gate| {
                let seats = seats();
                Desk {
                    gate,
                    threads: seats.len(),
                    pool: Pool::new("nucleo-books", Arc::clone(&clock), seats),
                    overdue: Arc::default(),
                }
            })
            .collect();
        Self { desks, clock }
    }

    pub(super) fn gates(&self) -> impl Iterator<Item = &Arc<dyn SpendGate>> {
        self.desks.iter().map(|desk| &desk.gate)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.desks.is_empty()
    }

    /// Tells every gate that the job has ended, with these calls.
    pub(super) fn close(&self, job: &Arc<JobCore>, calls: &Arc<[ModelCall]>) {
        if self.desks.is_empty() {
            return;
        }
        let ended = Ended {
            job: Arc::clone(job),
            snapshot: job.snapshot(),
            calls: Arc::clone(calls),
        };
        let deadline = self.clock.now().checked_add(PATIENCE);
        let told: Vec<_> = self
            .desks
            .iter()
            .map(|desk| (desk, desk.tell(ended.clone())))
            .collect();
        for (desk, closing) in told {
            if !desk.wait(&closing, &*self.clock, deadline) {
                crate::aside::error!(
                    "{}: a spend gate does not answer ({:?}); the job ends without it, and its books \
                     close when it does",
                    job.id(),
                    PATIENCE
                );
            }
        }
    }

    /// Starts the threads.
    ///
    /// # Errors
    /// The system's refusal; a later start may succeed.
    pub(super) fn start(&self) -> io::Result<()> {
        self.desks.iter().try_for_each(|desk| desk.pool.start())
    }

    /// Lets the threads end once every job has been told.
    pub(super) fn stop(&self) {
        for desk in &self.desks {
            desk.pool.stop();
        }
    }
}

impl fmt::Debug for Books {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Books").finish_non_exhaustive()
    }
}

#[derive(Clone)]
struct Ended {
    job: Arc<JobCore>,
    snapshot: JobSnapshot,
    calls: Arc<[ModelCall]>,
}

impl Ended {
    fn tell(&self, gate: &dyn SpendGate) {
        let told = behalf::acting(Some(self.job.behalf()), || {
            contain("spend gate", || gate.settle(&self.snapshot, &self.calls))
        });
        if let Err(error) = told {
            crate::aside::error!("{}: {error}", self.job.id());
        }
    }
}

const RUNNING: u8 = 0;
const DONE: u8 = 1;
const LEFT: u8 = 2;

/// One call of a gate.
struct Closing {
    state: AtomicU8,
    done: Arc<WaitCell>,
}

impl Desk {
    fn tell(&self, ended: Ended) -> Arc<Closing> {
        let closing = Arc::new(Closing {
            state: AtomicU8::new(RUNNING),
            done: WaitCell::new(),
        });
        let (gate, overdue) = (Arc::clone(&self.gate), Arc::clone(&self.overdue));
        let (closes, late) = (Arc::clone(&closing), ended.clone());
        let taken = self.pool.run(move || {
            ended.tell(&*gate);
            if closes.state.swap(DONE, Ordering::SeqCst) == LEFT {
                overdue.fetch_sub(1, Ordering::SeqCst);
            }
            closes.done.notify();
        });
        if !taken {
            // The dispatcher has ended, and so have the threads: a job that is refused since then.
            if !self.is_stuck() {
                late.tell(&*self.gate);
            }
            closing.state.store(DONE, Ordering::SeqCst);
        }
        closing
    }

    fn is_stuck(&self) -> bool {
        self.overdue.load(Ordering::SeqCst) >= self.threads
    }

    /// Answers false when the call is left to its thread.
    fn wait(&self, closing: &Closing, clock: &dyn Clock, deadline: Option<Instant>) -> bool {
        loop {
            let seen = closing.done.epoch();
            if closing.state.load(Ordering::SeqCst) == DONE {
                return true;
            }
            let over = deadline.is_some_and(|deadline| clock.now() >= deadline);
            if over || self.is_stuck() {
                // Counted before it is left, for its thread takes it off as soon as it is.
                self.overdue.fetch_add(1, Ordering::SeqCst);
                let left = closing.state.compare_exchange(
                    RUNNING,
                    LEFT,
                    Ordering::SeqCst,
                    Ordering::SeqCst,
                );
                if left.is_err() {
                    self.overdue.fetch_sub(1, Ordering::SeqCst);
                }
                return left.is_err();
            }
            clock.wait_until(&closing.done, seen, deadline);
        }
    }
}
