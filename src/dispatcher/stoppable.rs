//! What an application registers to be stopped with the dispatcher (`CS-4`, `CS-7`).
//!
//! # Invariants
//!
//! 1. Whatever a stoppable is asked, its name included, is asked on a thread that the shutdown does not wait for
//!    beyond the budget.
//! 2. One for which there is no thread waits for the next that comes back, or for one that has stopped another.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::inner::Inner;
use crate::aside;
use crate::clock::WaitCell;
use crate::job::behalf::{self, Handed};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::threads::Threads;
use crate::unwind::{contain, discard_each};

/// What all of them get together (CS-4).
const BUDGET: Duration = Duration::from_secs(5);
/// After a thread could not be started, the next try comes this much later.
const RETRY: Duration = Duration::from_millis(100);

/// Something of the application's that ends with the dispatcher: a poller, a connection, a server.
pub trait Stoppable: Send + Sync + 'static {
    /// What it is called in logs. Its type unless it says otherwise.
    fn name(&self) -> String {
        std::any::type_name::<Self>().to_owned()
    }

    /// Stops it. Called at the shutdown, which waits for it for 5 seconds at most: on a thread of its own
    /// while there are threads, else on one after another has stopped. A panic is logged.
    fn stop(&self);
}

type Work = Box<dyn FnOnce() + Send>;

/// A [`Stoppable`] that raises a flag first and then stops, once, however often it is told to.
pub struct StopOnce {
    stopping: AtomicBool,
    /// Of whoever made it, wherever it runs or is dropped.
    work: Mutex<Option<Handed<Work>>>,
}

impl StopOnce {
    /// Runs `work` at the first stop.
    pub fn new(work: impl FnOnce() + Send + 'static) -> Self {
        Self {
            stopping: AtomicBool::new(false),
            work: Mutex::new(Some(Handed::here(Box::new(work)))),
        }
    }

    /// Whether it has been told to stop; true before the work of stopping begins.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }
}

impl Stoppable for StopOnce {
    fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        let work = self.work.lock().take();
        if let Some(work) = work {
            work.spend(|work| work());
        }
    }
}

impl fmt::Debug for StopOnce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StopOnce")
            .field("stopping", &self.is_stopping())
            .finish_non_exhaustive()
    }
}

/// What is to be stopped, and how far that is.
struct Round {
    state: Mutex<State>,
    /// One has stopped, or a thread has come back.
    moved: Arc<WaitCell>,
}

struct State {
    /// Those that no thread has begun with, by their numbers.
    queue: VecDeque<(usize, Handed<Arc<dyn Stoppable>>)>,
    /// Threads that were started and have not begun with one.
    coming: usize,
    seen: Vec<Seen>,
    left: usize,
}

/// What is known of one.
#[derive(Clone, Default)]
struct Seen {
    name: Option<String>,
    stopped: bool,
}

/// Stops all of them, side by side as far as there are threads, and answers the names of those that did not in time.
pub(super) fn stop_all(inner: &Inner, stoppables: Vec<Handed<Arc<dyn Stoppable>>>) -> Vec<String> {
    if stoppables.is_empty() {
        return Vec::new();
    }
    let clock = inner.clock();
    let round = Arc::new(Round {
        state: Mutex::new(State {
            coming: 0,
            seen: vec![Seen::default(); stoppables.len()],
            left: stoppables.len(),
            queue: stoppables.into_iter().enumerate().collect(),
        }),
        moved: WaitCell::new(),
    });
    inner.threads().notify_when_freed(&round.moved);
    let deadline = clock.now().checked_add(BUDGET);
    loop {
        let seen = round.moved.epoch();
        let retry = start_threads(inner, &round).and_then(|()| clock.now().checked_add(RETRY));
        let over = deadline.is_some_and(|deadline| clock.now() >= deadline);
        if round.state.lock().left == 0 || over {
            break;
        }
        clock.wait_until(&round.moved, seen, deadline.into_iter().chain(retry).min());
    }
    let seen = round.state.lock().seen.clone();
    seen.into_iter()
        .enumerate()
        .filter(|(_, seen)| !seen.stopped)
        .map(|(number, seen)| seen.name.unwrap_or_else(|| nameless(number)))
        .collect()
}

/// It has not been asked, for want of a thread, or does not answer.
fn nameless(number: usize) -> String {
    format!("stoppable {} in the order of registration", number + 1)
}

/// Starts a thread for each that has none, while there are any. Answers that some are left for which there is none.
fn start_threads(inner: &Inner, round: &Arc<Round>) -> Option<()> {
    loop {
        {
            let mut state = round.state.lock();
            if state.queue.len() <= state.coming {
                return None;
            }
            state.coming += 1;
        }
        if !start_thread(inner, round) {
            round.state.lock().coming -= 1;
            return Some(());
        }
    }
}

fn start_thread(inner: &Inner, round: &Arc<Round>) -> bool {
    let serving = || {
        let round = Arc::clone(round);
        move || round.serve()
    };
    // Once more after saying so: a thread that ended in between has not seen it.
    let seat = inner.threads().try_seat(usize::MAX).or_else(|| {
        inner.threads().starve();
        inner.threads().try_seat(usize::MAX)
    });
    if let Some(seat) = seat
        && Threads::spawn(seat, "nucleo-stop", serving()).is_ok()
    {
        return true;
    }
    // Threads that are there in any case, and have nothing left to sever or to close unless it is stuck.
    inner.closers().try_run(serving()) || inner.aborters().try_run(serving())
}

impl Round {
    /// Stops one after the other while there are any.
    fn serve(&self) {
        let mut coming = true;
        loop {
            let next = {
                let mut state = self.state.lock();
                state.coming -= usize::from(coming);
                state.queue.pop_front()
            };
            coming = false;
            let Some((number, stoppable)) = next else {
                return;
            };
            self.stop(number, stoppable);
        }
    }

    fn stop(&self, number: usize, stoppable: Handed<Arc<dyn Stoppable>>) {
        let by = stoppable.by().cloned();
        let name = behalf::acting(by.as_ref(), || {
            contain("stoppable", || stoppable.value().name()).unwrap_or_default()
        });
        self.seen(number, |seen| seen.name = Some(name));
        if let Err(error) = stoppable.spend(|own| contain("stoppable", || own.stop())) {
            aside::error!("a stoppable failed: {error}");
        }
        self.seen(number, |seen| seen.stopped = true);
        self.state.lock().left -= 1;
        self.moved.notify();
    }

    fn seen(&self, number: usize, change: impl FnOnce(&mut Seen)) {
        if let Some(seen) = self.state.lock().seen.get_mut(number) {
            change(seen);
        }
    }
}

impl Drop for Round {
    fn drop(&mut self) {
        // There never was a thread for these.
        let left = std::mem::take(&mut self.state.get_mut().queue);
        discard_each(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn a_stop_raises_its_flag_first_and_happens_once() {
        let stops = Arc::new(AtomicUsize::new(0));
        let seen: Arc<Mutex<Option<Arc<StopOnce>>>> = Arc::default();
        let (counted, looking) = (Arc::clone(&stops), Arc::clone(&seen));
        let once = Arc::new(StopOnce::new(move || {
            counted.fetch_add(1, Ordering::SeqCst);
            let own = looking.lock().take();
            assert!(own.is_some_and(|own| own.is_stopping()));
        }));
        *seen.lock() = Some(Arc::clone(&once));
        assert!(!once.is_stopping());
        once.stop();
        once.stop();
        assert_eq!(stops.load(Ordering::SeqCst), 1);
    }
}
