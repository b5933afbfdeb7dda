//! The real ones' interface over the model checker's.

pub(crate) use shuttle::sync::atomic;
pub(crate) use shuttle::thread;

use std::ops::{Deref, DerefMut};
use std::sync::{PoisonError, TryLockError};
use std::time::Instant;

use shuttle::sync;

/// The checker's threads share one of the system's, so theirs is the only storage that is a
/// thread's own. It has no `const` form.
macro_rules! task_local {
    ($(#[$meta:meta])* static $name:ident: $type:ty = const { $value:expr };) => {
        shuttle::thread_local! { $(#[$meta])* static $name: $type = $value; }
    };
    ($(#[$meta:meta])* static $name:ident: $type:ty = $value:expr;) => {
        shuttle::thread_local! { $(#[$meta])* static $name: $type = $value; }
    };
}
pub(crate) use task_local as thread_local;

/// A lock that does not poison.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(sync::Mutex<T>);

/// Holds a [`Mutex`]. Empty only inside of a [`Condvar::wait`].
pub(crate) struct MutexGuard<'a, T>(Option<sync::MutexGuard<'a, T>>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl<T> Mutex<T> {
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(MutexGuard(Some(guard))),
            Err(TryLockError::Poisoned(poisoned)) => Some(MutexGuard(Some(poisoned.into_inner()))),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("held")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("held")
    }
}

#[derive(Debug, Default)]
pub(crate) struct Condvar(sync::Condvar);

/// What ended a wait.
pub(crate) struct WaitTimeoutResult;

impl WaitTimeoutResult {
    pub(crate) fn timed_out(&self) -> bool {
        false
    }
}

impl Condvar {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }

    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let held = guard.0.take().expect("held");
        guard.0 = Some(self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
    }

    /// The model has no time: a wait ends when it is notified.
    pub(crate) fn wait_until<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        _: Instant,
    ) -> WaitTimeoutResult {
        self.wait(guard);
        WaitTimeoutResult
    }
}

/// A reader-writer lock that does not poison.
#[derive(Debug, Default)]
pub(crate) struct RwLock<T>(sync::RwLock<T>);

impl<T> RwLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(sync::RwLock::new(value))
    }

    pub(crate) fn read(&self) -> sync::RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> sync::RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Faults that a test plants to show that the checker finds them.
pub(crate) mod fault {
    use std::sync::atomic::{AtomicU8, Ordering};

    /// What goes wrong.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[repr(u8)]
    pub(crate) enum Fault {
        /// A settlement that wakes nobody.
        SettleWakesNobody = 1,
        /// A settlement token that everybody gets.
        TokenForEverybody,
        /// A cancellation that does not wake the job's thread.
        CancelWakesNobody,
        /// A grant that does not wake its waiter.
        GrantWakesNobody,
        /// A failed take that keeps what it took.
        SkippedRollback,
        /// A release that does not call the evaluator.
        ReleaseCallsNobody,
    }

    /// Not the checker's: it is set around whole runs, not inside of one.
    static PLANTED: AtomicU8 = AtomicU8::new(0);

    /// Plants a fault, or takes away the one that is planted.
    #[cfg(test)]
    pub(crate) fn plant(fault: Option<Fault>) {
        PLANTED.store(fault.map_or(0, |fault| fault as u8), Ordering::SeqCst);
    }

    pub(crate) fn is_planted(fault: Fault) -> bool {
        PLANTED.load(Ordering::SeqCst) == fault as u8
    }
}
