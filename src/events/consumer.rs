//! The thread of one subscription.
//!
//! # Invariants
//!
//! 1. The observer is called on this thread alone, one event at a time, in queue order (BUS-1).
//! 2. No panic of the observer, of its predicate or of a payload's destructor ends the thread
//!    (BUS-6). An event is dropped in a step of its own, never while another panic unwinds.
//! 3. All of it runs for whoever subscribed, and what it submits is theirs.
//! 4. Every token is answered, at the latest when the thread ends; those behind a `Close` only
//!    after the observer has heard what came before it.

use std::cell::Cell;
use std::sync::{Arc, Weak};

use crossbeam::channel::Receiver;

use super::bus::Inner;
use super::event::Event;
use super::gate::Token;
use super::lane::{Control, Item, Shared};
use super::observer::Observer;
use super::subscription::SubscriptionId;
use crate::job::behalf::{self, Behalf};
use crate::sync::atomic::Ordering;
use crate::unwind::catch;

pub(super) struct Consumer {
    pub(super) id: SubscriptionId,
    pub(super) observer: Arc<dyn Observer>,
    /// Who subscribed; none for the application.
    pub(super) behalf: Option<Arc<Behalf>>,
    pub(super) receiver: Receiver<Item>,
    pub(super) shared: Arc<Shared>,
    /// Weak: a bus that nobody holds ends its consumers.
    pub(super) bus: Weak<Inner>,
}

impl Consumer {
    pub(super) fn run(mut self) {
        let _acting = behalf::enter(self.behalf.take());
        while let Ok(item) = self.receiver.recv() {
            if let Some(event) = item {
                self.handle(event);
                continue;
            }
            match self.shared.next_control() {
                Some(Control::Flush(token)) => drop(token),
                Some(Control::Sweep(token)) => self.sweep(token),
                Some(Control::Close) | None => break,
            }
        }
        self.end();
    }

    fn handle(&self, event: Arc<Event>) {
        self.shared.count_handled();
        if !self.shared.cut.load(Ordering::Relaxed) {
            // One containment for both: it is paid for every event.
            let accepted = Cell::new(false);
            let outcome = catch(|| {
                accepted.set(self.observer.accepts(&event));
                if accepted.get() {
                    self.observer.observe(&event);
                }
            });
            if let Err(text) = outcome {
                let what = if accepted.get() {
                    "observer"
                } else {
                    "predicate"
                };
                self.log_panic(what, &text);
            }
        }
        self.discard(event);
    }

    fn sweep(&self, token: Option<Token>) {
        self.shared.sweep_asked.store(false, Ordering::Relaxed);
        match catch(|| self.observer.is_stale()) {
            Ok(false) => {}
            Ok(true) => {
                let removed = self
                    .bus
                    .upgrade()
                    .is_some_and(|bus| bus.unsubscribe(self.id));
                if let (true, Some(token)) = (removed, &token) {
                    token.count();
                }
            }
            Err(text) => self.log_panic("staleness check", &text),
        }
        drop(token);
    }

    fn end(self) {
        let Self {
            id,
            observer,
            receiver,
            shared,
            bus,
            behalf: _,
        } = self;
        // Before the observer goes: whoever sees it gone may rely on this.
        shared.ended.store(true, Ordering::Release);
        if let Err(text) = catch(move || drop(observer)) {
            log::error!("the observer of subscription {id} panicked as it was dropped: {text}");
        }
        if let Some(bus) = bus.upgrade() {
            bus.forget(id);
        }
        while let Ok(item) = receiver.try_recv() {
            let _ = catch(move || drop(item));
        }
        shared.close_controls();
        // A publisher with an older list may have added something since.
        let _ = catch(move || drop(receiver));
    }

    fn discard(&self, event: Arc<Event>) {
        if let Err(text) = catch(move || drop(event)) {
            self.log_panic("destructor of an event's payload", &text);
        }
    }

    fn log_panic(&self, what: &str, text: &str) {
        log::error!("the {what} of subscription {} panicked: {text}", self.id);
    }
}
