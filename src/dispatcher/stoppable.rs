//! What an application registers to be stopped with the dispatcher (`CS-4`, `CS-7`).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::inner::Inner;
use crate::clock::WaitCell;
use crate::job::behalf::{self, Handed};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::threads::Threads;
use crate::unwind::contain;

/// What all of them get together (CS-4).
const BUDGET: Duration = Duration::from_secs(5);

/// Something of the application's that ends with the dispatcher: a poller, a connection, a server.
pub trait Stoppable: Send + Sync + 'static {
    /// What it is called in logs. Its type unless it says otherwise.
    fn name(&self) -> String {
        std::any::type_name::<Self>().to_owned()
    }

    /// Stops it. Called on a thread of its own at the shutdown, which waits for it for 5 seconds at
    /// most. A panic is logged.
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

/// Stops all of them side by side, and answers the names of those that did not in time.
pub(super) fn stop_all(inner: &Inner, stoppables: Vec<Handed<Arc<dyn Stoppable>>>) -> Vec<String> {
    let left = Arc::new(AtomicUsize::new(stoppables.len()));
    let one_stopped = WaitCell::new();
    let stopped: Vec<_> = stoppables
        .into_iter()
        .map(|stoppable| {
            let done = Arc::new(AtomicBool::new(false));
            let (finished, left, cell) = (
                Arc::clone(&done),
                Arc::clone(&left),
                Arc::clone(&one_stopped),
            );
            let by = stoppable.by().cloned();
            let name = behalf::acting(by.as_ref(), || {
                contain("stoppable", || stoppable.value().name()).unwrap_or_default()
            });
            let stop = move || {
                if let Err(error) = stoppable.spend(|own| contain("stoppable", || own.stop())) {
                    log::error!("a stoppable failed: {error}");
                }
                finished.store(true, Ordering::SeqCst);
                left.fetch_sub(1, Ordering::SeqCst);
                cell.notify();
            };
            let started = inner
                .threads()
                .try_seat(usize::MAX)
                .map(|seat| Threads::spawn(seat, "nucleo-stop", stop));
            if !matches!(started, Some(Ok(_))) {
                log::error!("no thread to stop {name}");
            }
            (name, done)
        })
        .collect();
    let deadline = inner.clock().now().checked_add(BUDGET);
    loop {
        let seen = one_stopped.epoch();
        let over = deadline.is_some_and(|deadline| inner.clock().now() >= deadline);
        if left.load(Ordering::SeqCst) == 0 || over {
            break;
        }
        inner.clock().wait_until(&one_stopped, seen, deadline);
    }
    stopped
        .into_iter()
        .filter(|(_, done)| !done.load(Ordering::SeqCst))
        .map(|(name, _)| name)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
