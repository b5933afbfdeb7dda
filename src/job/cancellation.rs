//! Telling work to stop, and running what it left to be run when it is told (`CTX-2`, `CTX-3`).
//!
//! # Invariants
//!
//! 1. A callback runs once: by the firing if it was registered before, by its registrar if after.
//!    One lock guards the list and the flag.
//! 2. No callback runs under that lock, so a callback may register another.
//! 3. A callback runs for whoever registered it, and so does the drop of one that will not run.

use std::fmt;
use std::sync::Arc;

use super::behalf::{self, Behalf};
use super::current;
use crate::sync::Mutex;
use crate::unwind::{contain, discard};

/// Something to run, and for whom.
struct Callback {
    run: Box<dyn FnOnce() + Send>,
    behalf: Option<Arc<Behalf>>,
}

/// Callbacks that run once, when something happens that happens once.
pub(super) struct Callbacks {
    state: Mutex<State>,
}

enum State {
    Waiting(Vec<Callback>),
    Fired,
    /// It will not happen any more.
    Closed,
}

impl Default for Callbacks {
    fn default() -> Self {
        Self {
            state: Mutex::new(State::Waiting(Vec::new())),
        }
    }
}

impl Callbacks {
    /// Keeps the callback for the firing; runs it at once if that has been; drops it if it will
    /// not be any more.
    ///
    /// It runs for whoever registers it; for the job `of` when that is nobody.
    pub(super) fn register<'a>(
        &self,
        of: impl Into<Option<&'a Arc<Behalf>>>,
        callback: impl FnOnce() + Send + 'static,
    ) {
        let callback = Callback {
            run: Box::new(callback),
            behalf: behalf::here().or_else(|| of.into().cloned()),
        };
        let now = {
            let mut state = self.state.lock();
            match &mut *state {
                State::Waiting(callbacks) => {
                    callbacks.push(callback);
                    return;
                }
                State::Fired => Some(callback),
                State::Closed => None,
            }
        };
        if let Some(callback) = now {
            run(callback);
        }
    }

    /// Runs every callback on the calling thread. A second firing finds none.
    pub(super) fn fire(&self) {
        let due = {
            let mut state = self.state.lock();
            match std::mem::replace(&mut *state, State::Fired) {
                State::Waiting(callbacks) => callbacks,
                State::Fired => Vec::new(),
                State::Closed => {
                    *state = State::Closed;
                    Vec::new()
                }
            }
        };
        for callback in due {
            run(callback);
        }
    }

    /// Drops what is registered now and later.
    pub(super) fn close(&self) {
        let dropped = {
            let mut state = self.state.lock();
            match &*state {
                State::Waiting(_) => std::mem::replace(&mut *state, State::Closed),
                State::Fired | State::Closed => return,
            }
        };
        dropped.discard();
    }
}

impl State {
    /// Drops what is registered, each on its own: a destructor that panics ends alone, and two of
    /// them in one unwinding would end the process.
    fn discard(self) {
        if let Self::Waiting(callbacks) = self {
            for Callback { run, behalf } in callbacks {
                behalf::acting(behalf.as_ref(), || discard(run));
            }
        }
    }
}

impl Drop for Callbacks {
    fn drop(&mut self) {
        std::mem::replace(self.state.get_mut(), State::Closed).discard();
    }
}

/// A callback is foreign code on a thread that is not its job's: it sees no current job, and a
/// panic ends with it.
fn run(Callback { run, behalf }: Callback) {
    let work = || current::masked(|| contain("callback", run));
    if let Err(error) = behalf::acting(behalf.as_ref(), work) {
        log::error!("a callback failed: {error}");
    }
}

/// Tells whoever holds a clone to stop; for a user's own work. Touches no job.
///
/// The first cancellation gives the reason; later ones change nothing.
#[derive(Clone, Default)]
pub struct CancellationToken {
    shared: Arc<Token>,
}

#[derive(Default)]
struct Token {
    reason: Mutex<Option<Arc<str>>>,
    callbacks: Callbacks,
}

impl CancellationToken {
    /// A token that has not been cancelled.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancels, and runs the callbacks on this thread. Answers whether this was the first time.
    pub fn cancel(&self, reason: &str) -> bool {
        {
            let mut current = self.shared.reason.lock();
            if current.is_some() {
                return false;
            }
            *current = Some(reason.into());
        }
        self.shared.callbacks.fire();
        true
    }

    /// Whether it has been cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.shared.reason.lock().is_some()
    }

    /// Why, once it has been cancelled.
    #[must_use]
    pub fn reason(&self) -> Option<Arc<str>> {
        self.shared.reason.lock().clone()
    }

    /// Runs `callback` once, at the cancellation; at once if that has been. A panic in it is
    /// logged and goes no further.
    pub fn on_cancellation(&self, callback: impl FnOnce() + Send + 'static) {
        self.shared.callbacks.register(None, callback);
    }
}

impl fmt::Debug for CancellationToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancellationToken")
            .field("reason", &self.reason())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    // case CTX-17
    #[test]
    fn a_token_runs_its_callbacks_once_and_keeps_the_first_reason() {
        let token = CancellationToken::new();
        let ran = Arc::new(AtomicUsize::new(0));
        let count = || {
            let ran = Arc::clone(&ran);
            move || {
                ran.fetch_add(1, Ordering::SeqCst);
            }
        };
        token.on_cancellation(count());
        assert!(token.cancel("done"));
        assert!(!token.cancel("again"));
        assert_eq!(ran.load(Ordering::SeqCst), 1);
        assert_eq!(token.reason().as_deref(), Some("done"));
        token.on_cancellation(count());
        assert_eq!(ran.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn a_callback_may_register_another_and_may_panic() {
        let token = CancellationToken::new();
        let ran = Arc::new(AtomicUsize::new(0));
        let (inner, counted) = (token.clone(), Arc::clone(&ran));
        token.on_cancellation(|| panic!("in a callback"));
        token.on_cancellation(move || {
            inner.on_cancellation(move || {
                counted.fetch_add(1, Ordering::SeqCst);
            });
        });
        token.cancel("x");
        assert_eq!(ran.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn every_callback_runs_once_whichever_side_of_the_firing_it_lands_on() {
        for _ in 0..100 {
            let token = CancellationToken::new();
            let ran = Arc::new(AtomicUsize::new(0));
            let start = Barrier::new(9);
            thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(|| {
                        start.wait();
                        let ran = Arc::clone(&ran);
                        token.on_cancellation(move || {
                            ran.fetch_add(1, Ordering::SeqCst);
                        });
                    });
                }
                start.wait();
                token.cancel("race");
            });
            assert_eq!(ran.load(Ordering::SeqCst), 8);
        }
    }
}
