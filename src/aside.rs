//! What is a user's and may block, kept off the threads that others wait for (`TO-5`, `CS-4`).
//!
//! A destructor, a logger: whoever lets go of a value or has something to say calls them, and they may
//! take as long as they like, or panic. The threads that keep everybody else's time (the timer, the settler,
//! the queues, whoever runs a shutdown) name a place where such things go instead. Everything that drops a
//! user's value does so through [`discard`](crate::unwind::discard), and every line of the log is written through
//! [`warn!`] and [`error!`], so neither has to know on which thread it is.
//!
//! # Invariants
//!
//! 1. While a thread has such a place, no destructor of a user's that is called through here and no logger runs on it.
//! 2. A logger that panics ends with its line, on every thread.

use std::fmt;
use std::sync::Arc;

use log::Level;

use crate::threads::Slot;
use crate::unwind::{catch, quietly};

pub(crate) type Work = Box<dyn FnOnce() + Send>;

/// Where such things go.
pub(crate) trait Elsewhere: Send + Sync {
    /// Has it done, some time, on a thread that may block. Never blocks itself.
    fn take(&self, work: Work);
}

crate::sync::thread_local! {
    static ELSEWHERE: Slot<Arc<dyn Elsewhere>> = const { Slot::empty() };
}

/// Puts the thread back to what it was.
#[must_use]
pub(crate) struct Relieved {
    before: Option<Arc<dyn Elsewhere>>,
}

impl Drop for Relieved {
    fn drop(&mut self) {
        let over = ELSEWHERE.with(|slot| slot.replace(self.before.take()));
        drop(over);
    }
}

/// The thread does no such thing itself until the answer is dropped.
pub(crate) fn enter(elsewhere: Arc<dyn Elsewhere>) -> Relieved {
    Relieved {
        before: ELSEWHERE.with(|slot| slot.replace(Some(elsewhere))),
    }
}

/// Where the calling thread sends such things; none when it does them itself.
pub(crate) fn elsewhere() -> Option<Arc<dyn Elsewhere>> {
    ELSEWHERE.with(Slot::get)
}

/// Writes a line of the log: here, or where the thread sends such things.
pub(crate) fn line(level: Level, target: &'static str, text: fmt::Arguments<'_>) {
    if level > log::max_level() {
        return;
    }
    match elsewhere() {
        None => write(level, target, text),
        Some(elsewhere) => {
            let text = catch(|| text.to_string()).unwrap_or_default();
            elsewhere.take(Box::new(move || {
                write(level, target, format_args!("{text}"));
            }));
        }
    }
}

fn write(level: Level, target: &'static str, text: fmt::Arguments<'_>) {
    // Whoever writes the log has panicked: there is nobody to tell.
    quietly(|| log::log!(target: target, level, "{text}"));
}

macro_rules! warn_aside {
    ($($text:tt)+) => {
        $crate::aside::line(::log::Level::Warn, module_path!(), format_args!($($text)+))
    };
}

macro_rules! error_aside {
    ($($text:tt)+) => {
        $crate::aside::line(::log::Level::Error, module_path!(), format_args!($($text)+))
    };
}

pub(crate) use error_aside as error;
pub(crate) use warn_aside as warn;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::Mutex;
    use crate::unwind::discard;

    #[derive(Default)]
    struct Kept(Mutex<Vec<Work>>);

    impl Elsewhere for Kept {
        fn take(&self, work: Work) {
            self.0.lock().push(work);
        }
    }

    #[test]
    fn a_thread_with_a_place_for_it_drops_nothing_itself() {
        let (kept, value) = (Arc::new(Kept::default()), Arc::new(()));
        {
            let _relieved = enter(Arc::clone(&kept) as Arc<dyn Elsewhere>);
            discard(Arc::clone(&value));
        }
        assert_eq!(Arc::strong_count(&value), 2);
        for work in std::mem::take(&mut *kept.0.lock()) {
            work();
        }
        assert_eq!(Arc::strong_count(&value), 1);
        discard(value);
        assert!(kept.0.lock().is_empty());
    }
}
