//! A thread's place for something that is always taken out again.

use std::cell::RefCell;
use std::mem::ManuallyDrop;

/// What a thread keeps for a while, for a thread-local: whoever puts something in takes it out again,
/// by a guard. So it has no destructor, and no thread pays for registering one: a job's thread, which
/// may live for some microseconds, would for each of them.
pub(crate) struct Slot<T> {
    value: RefCell<ManuallyDrop<Option<T>>>,
}

impl<T> Slot<T> {
    pub(crate) const fn empty() -> Self {
        Self {
            value: RefCell::new(ManuallyDrop::new(None)),
        }
    }

    /// Puts this in and answers what was there, for the caller to drop: its destructor may look here.
    pub(crate) fn replace(&self, value: Option<T>) -> Option<T> {
        ManuallyDrop::into_inner(self.value.replace(ManuallyDrop::new(value)))
    }
}

impl<T: Clone> Slot<T> {
    pub(crate) fn get(&self) -> Option<T> {
        (**self.value.borrow()).clone()
    }
}
