//! Where stuck things are stuck.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

/// Holds whoever comes here until the test lets them go.
#[derive(Clone, Default)]
pub(crate) struct Stuck {
    open: Arc<(Mutex<bool>, Condvar)>,
    reached: Arc<AtomicBool>,
}

impl Stuck {
    /// Is stuck here, until [`let_go`](Self::let_go).
    pub(crate) fn here(&self) {
        self.reached.store(true, Ordering::SeqCst);
        let (open, opened) = &*self.open;
        let mut open = open.lock().unwrap();
        while !*open {
            open = opened.wait(open).unwrap();
        }
    }

    pub(crate) fn wait_until_reached(&self) {
        while !self.reached.load(Ordering::SeqCst) {
            thread::yield_now();
        }
    }

    pub(crate) fn let_go(&self) {
        *self.open.0.lock().unwrap() = true;
        self.open.1.notify_all();
    }
}
