//! Threads that end what does not end by itself (`TO-5`).
//!
//! Each pool is bounded and its threads are reserved under the cap from the start, so that work
//! that is stuck cannot take the threads that deal with it.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::clock::{Clock, WaitCell};
use crate::sync::Mutex;
use crate::threads::{Seat, Threads};
use crate::unwind::contain;

type Work = Box<dyn FnOnce() + Send>;

/// A few threads and a queue. Threads start when there is work for them and stay.
pub(super) struct Pool {
    name: &'static str,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    work_available: Arc<WaitCell>,
}

struct State {
    queue: VecDeque<Work>,
    /// Seats of threads that have not been started.
    reserved: Vec<Seat>,
    idle: usize,
    stopped: bool,
}

impl Pool {
    /// A pool of as many threads as there are seats.
    pub(super) fn new(name: &'static str, clock: Arc<dyn Clock>, seats: Vec<Seat>) -> Arc<Self> {
        Arc::new(Self {
            name,
            clock,
            state: Mutex::new(State {
                queue: VecDeque::new(),
                reserved: seats,
                idle: 0,
                stopped: false,
            }),
            work_available: WaitCell::new(),
        })
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
        let seat = {
            let mut state = self.state.lock();
            let free = state.idle > state.queue.len();
            let seat = if free { None } else { state.reserved.pop() };
            if state.stopped || only_if_free && !free && seat.is_none() {
                return false;
            }
            state.queue.push_back(work);
            seat
        };
        if let Some(seat) = seat {
            let pool = Arc::clone(self);
            if let Err(error) = Threads::spawn(seat, self.name, move || pool.serve()) {
                log::error!("no thread for {}: {error}", self.name);
            }
        }
        self.work_available.notify();
        true
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
        loop {
            let seen = self.work_available.epoch();
            let work = {
                let mut state = self.state.lock();
                let work = state.queue.pop_front();
                if work.is_none() {
                    if state.stopped {
                        return;
                    }
                    state.idle += 1;
                }
                work
            };
            match work {
                Some(work) => {
                    if let Err(error) = contain(self.name, work) {
                        log::error!("{} failed: {error}", self.name);
                    }
                }
                None => {
                    self.clock.wait_until(&self.work_available, seen, None);
                    self.state.lock().idle -= 1;
                }
            }
        }
    }
}
