//! Threads that end what does not end by itself (`TO-5`).
//!
//! # Invariants
//!
//! 1. Each pool is bounded. Its seats are taken when the dispatcher is built and its threads started with it, so
//!    that neither work that is stuck nor a system without threads can take what deals with it.
//! 2. A thread of a pool ends with the pool: a panic ends with the work that it came from, and a logger's with its line.
//! 3. The threads of a [careful](Pool::careful) pool run nothing foreign, not even a destructor.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, OnceLock};

use crate::aside::{self, Elsewhere};
use crate::clock::{Clock, WaitCell};
use crate::sync::Mutex;
use crate::threads::{Seat, Threads};
use crate::unwind::contain;

type Work = Box<dyn FnOnce() + Send>;

/// A few threads and a queue.
pub(super) struct Pool {
    name: &'static str,
    clock: Arc<dyn Clock>,
    /// Where its threads send what is foreign; none where they are there for that.
    elsewhere: OnceLock<Arc<dyn Elsewhere>>,
    state: Mutex<State>,
    work_available: Arc<WaitCell>,
}

struct State {
    queue: VecDeque<Work>,
    /// Seats of threads that have not been started.
    reserved: Vec<Seat>,
    /// How many threads it has, started or not.
    threads: usize,
    /// How many of them do something.
    busy: usize,
    stopped: bool,
}

impl Pool {
    /// A pool of as many threads as there are seats.
    pub(super) fn new(name: &'static str, clock: Arc<dyn Clock>, seats: Vec<Seat>) -> Arc<Self> {
        Arc::new(Self {
            name,
            clock,
            elsewhere: OnceLock::new(),
            state: Mutex::new(State {
                queue: VecDeque::new(),
                threads: seats.len(),
                reserved: seats,
                busy: 0,
                stopped: false,
            }),
            work_available: WaitCell::new(),
        })
    }

    /// Its threads send what is foreign there.
    pub(super) fn careful(self: Arc<Self>, elsewhere: Arc<dyn Elsewhere>) -> Arc<Self> {
        // Set once, before there is a thread.
        let _ = self.elsewhere.set(elsewhere);
        self
    }

    /// Has one of the threads do this. It waits for a free one as long as it takes. Answers false,
    /// and drops it, once the pool has been stopped.
    pub(super) fn run(self: &Arc<Self>, work: impl FnOnce() + Send + 'static) -> bool {
        self.push(Box::new(work), false)
    }

    /// As [`run`](Self::run), but only if a thread is free for it now.
    pub(super) fn try_run(self: &Arc<Self>, work: impl FnOnce() + Send + 'static) -> bool {
        self.push(Box::new(work), true)
    }

    fn push(self: &Arc<Self>, work: Work, only_if_free: bool) -> bool {
        {
            let mut state = self.state.lock();
            // One that was started and has not looked yet is free as well.
            let free = state.threads - state.busy > state.queue.len();
            if state.stopped || only_if_free && !free {
                return false;
            }
            state.queue.push_back(work);
        }
        // Nothing is left to be started but in a pool that has not been, or could not be as a whole.
        if let Err(error) = self.start() {
            aside::error!("no thread for {}, which tries again: {error}", self.name);
        }
        self.work_available.notify();
        true
    }

    /// Starts the threads that have not been. Whatever happens later, they are there.
    ///
    /// # Errors
    /// The system's refusal; the seats of the threads that were not started are kept.
    pub(super) fn start(self: &Arc<Self>) -> io::Result<()> {
        loop {
            let Some(seat) = self.state.lock().reserved.pop() else {
                return Ok(());
            };
            let pool = Arc::clone(self);
            if let Err((error, seat)) =
                Threads::spawn_reserved(seat, self.name, move || pool.serve())
            {
                let mut state = self.state.lock();
                let over = if state.stopped {
                    seat
                } else {
                    state.reserved.extend(seat);
                    None
                };
                drop(state);
                drop(over);
                return Err(error);
            }
        }
    }

    /// Lets the threads end once the queue is empty.
    pub(super) fn stop(&self) {
        let seats = {
            let mut state = self.state.lock();
            state.stopped = true;
            std::mem::take(&mut state.reserved)
        };
        drop(seats);
        self.work_available.notify();
    }

    fn serve(&self) {
        let _relieved = self.elsewhere.get().cloned().map(aside::enter);
        loop {
            let seen = self.work_available.epoch();
            let work = {
                let mut state = self.state.lock();
                let work = state.queue.pop_front();
                if work.is_none() && state.stopped {
                    return;
                }
                state.busy += usize::from(work.is_some());
                work
            };
            match work {
                Some(work) => {
                    if let Err(error) = contain(self.name, work) {
                        aside::error!("{} failed: {error}", self.name);
                    }
                    self.state.lock().busy -= 1;
                }
                None => self.clock.wait_until(&self.work_available, seen, None),
            }
        }
    }
}
