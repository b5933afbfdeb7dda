//! Where the runtime's own threads send what is a user's and may block: destructors, lines of the log.
//!
//! # Invariants
//!
//! 1. [`take`](Elsewhere::take) never blocks and never fails: what finds no thread stays in the queue, in order.
//! 2. Threads start when there is something to do and end when there is not, at most [`THREADS`] of them. They take
//!    the seats that subscriptions take, so they keep no job from a thread.
//! 3. When there is no such seat, or the system refuses the thread, the closers do it, whose threads are there from
//!    the start.
//! 4. What is done is done for whoever handed it over.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::reaper::Pool;
use crate::aside::{Elsewhere, Work};
use crate::clock::{Clock, WaitCell};
use crate::job::behalf;
use crate::sync::Mutex;
use crate::threads::Threads;
use crate::unwind::quietly;

/// How many of them may be stuck before those behind them wait for one that is not.
const THREADS: usize = 4;

pub(super) struct Chores {
    clock: Arc<dyn Clock>,
    threads: Arc<Threads>,
    closers: Arc<Pool>,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    todo: Mutex<Todo>,
    /// The last chore has been done.
    done: Arc<WaitCell>,
}

#[derive(Default)]
struct Todo {
    queue: VecDeque<Work>,
    /// Threads that serve, or are about to.
    serving: usize,
    /// Chores that are in the queue or are being done.
    left: usize,
}

impl Chores {
    pub(super) fn new(clock: Arc<dyn Clock>, threads: Arc<Threads>, closers: Arc<Pool>) -> Self {
        Self {
            clock,
            threads,
            closers,
            state: Arc::default(),
        }
    }

    /// Waits until all of them have been done; false when `deadline` came first.
    pub(super) fn wait(&self, deadline: Option<Instant>) -> bool {
        loop {
            let seen = self.state.done.epoch();
            if self.state.todo.lock().left == 0 {
                return true;
            }
            if deadline.is_some_and(|deadline| self.clock.now() >= deadline) {
                return false;
            }
            self.clock.wait_until(&self.state.done, seen, deadline);
        }
    }

    fn start_thread(&self) -> bool {
        let Some(seat) = self.threads.try_seat_aside() else {
            return false;
        };
        let state = Arc::clone(&self.state);
        Threads::spawn(seat, "nucleo-chores", move || while state.do_one(true) {}).is_ok()
    }
}

impl Elsewhere for Chores {
    fn take(&self, work: Work) {
        let by = behalf::here();
        let more = {
            let mut todo = self.state.todo.lock();
            todo.queue.push_back(Box::new(move || {
                quietly(|| behalf::acting(by.as_ref(), work));
            }));
            todo.left += 1;
            let more = todo.serving < THREADS;
            todo.serving += usize::from(more);
            more
        };
        if more && self.start_thread() {
            return;
        }
        if more {
            self.state.todo.lock().serving -= 1;
            let state = Arc::clone(&self.state);
            self.closers.run(move || {
                state.do_one(false);
            });
        }
    }
}

impl State {
    /// Does the next of them. Answers false when there was none, and whoever `serves` is no longer counted.
    fn do_one(&self, serves: bool) -> bool {
        let next = {
            let mut todo = self.todo.lock();
            let next = todo.queue.pop_front();
            if next.is_none() && serves {
                todo.serving -= 1;
            }
            next
        };
        let Some(work) = next else { return false };
        work();
        let last = {
            let mut todo = self.todo.lock();
            todo.left -= 1;
            todo.left == 0
        };
        if last {
            self.done.notify();
        }
        true
    }
}

impl Drop for State {
    fn drop(&mut self) {
        // Nobody had a thread for them until the very end of the dispatcher.
        for work in std::mem::take(&mut self.todo.get_mut().queue) {
            work();
        }
    }
}
