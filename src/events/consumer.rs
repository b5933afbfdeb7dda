//! The thread of one subscription.
//!
//! # Invariants
//!
//! 1. The observer is called on this thread alone, one event at a time, in queue order (BUS-1).
//! 2. No panic of the observer, of its predicate or of a payload's destructor ends the thread
//!    (BUS-6). An event is dropped in a step of its own, never while another panic unwinds.
//! 3. Every token is answered, at the latest when the thread ends; those behind a `Close` only
//!    after the observer has heard what came before it.

use std::sync::{Arc, Weak};

use crossbeam::channel::Receiver;

use super::bus::Inner;
use super::contain::contain;
use super::event::Event;
use super::gate::Token;
use super::lane::{Control, Item, Tally};
use super::observer::Observer;
use super::subscription::SubscriptionId;
use crate::sync::atomic::Ordering;

pub(super) struct Consumer {
    pub(super) id: SubscriptionId,
    pub(super) observer: Arc<dyn Observer>,
    pub(super) receiver: Receiver<Item>,
    pub(super) tally: Arc<Tally>,
    /// Weak: a bus that nobody holds ends its consumers.
    pub(super) bus: Weak<Inner>,
}

impl Consumer {
    pub(super) fn run(self) {
        while let Ok(item) = self.receiver.recv() {
            match item {
                Item::Event(event) => self.handle(event),
                Item::Control(control) => match *control {
                    Control::Flush(token) => drop(token),
                    Control::Sweep(token) => self.sweep(token),
                    Control::Close => break,
                },
            }
        }
        self.end();
    }

    fn handle(&self, event: Arc<Event>) {
        self.tally.take_one();
        if !self.tally.cut.load(Ordering::Relaxed) {
            match contain(|| self.observer.accepts(&event)) {
                Ok(false) => {}
                Ok(true) => {
                    if let Err(text) = contain(|| self.observer.observe(&event)) {
                        self.log_panic("observer", &text);
                    }
                }
                Err(text) => self.log_panic("predicate", &text),
            }
        }
        self.discard(event);
    }

    fn sweep(&self, token: Option<Token>) {
        self.tally.sweep_asked.store(false, Ordering::Relaxed);
        match contain(|| self.observer.is_stale()) {
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
            tally,
            bus,
        } = self;
        // Before the observer goes: whoever sees it gone may rely on this.
        tally.ended.store(true, Ordering::Release);
        if let Err(text) = contain(move || drop(observer)) {
            log::error!("the observer of subscription {id} panicked as it was dropped: {text}");
        }
        if let Some(bus) = bus.upgrade() {
            bus.forget(id);
        }
        while let Ok(item) = receiver.try_recv() {
            let _ = contain(move || drop(item));
        }
        // A publisher with an older list may have added something since.
        let _ = contain(move || drop(receiver));
    }

    fn discard(&self, event: Arc<Event>) {
        if let Err(text) = contain(move || drop(event)) {
            self.log_panic("destructor of an event's payload", &text);
        }
    }

    fn log_panic(&self, what: &str, text: &str) {
        log::error!("the {what} of subscription {} panicked: {text}", self.id);
    }
}
