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

use std::sync::{Arc, Weak};
use std::time::Duration;

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

/// Where a consumer is, kept where a panic leaves it.
#[derive(Default)]
struct At {
    /// How many events it has taken.
    handled: u64,
    /// The one that it is at.
    event: Option<Arc<Event>>,
    step: Step,
}

#[derive(Clone, Copy, Default)]
enum Step {
    #[default]
    Accepting,
    Observing,
    Discarding,
}

impl Step {
    /// Whose code runs in it.
    fn whose(self) -> &'static str {
        match self {
            Self::Accepting => "predicate",
            Self::Observing => "observer",
            Self::Discarding => "destructor of an event's payload",
        }
    }
}

impl Consumer {
    pub(super) fn run(mut self) {
        let _acting = behalf::enter(self.behalf.take());
        let mut at = At::default();
        while let Err(text) = catch(|| self.work(&mut at)) {
            self.log_panic(at.step.whose(), &text);
            if let Some(event) = at.event.take() {
                self.discard(event);
            }
        }
        self.end();
    }

    /// Handles what comes until nothing more is to come. All of it runs in one containment, which
    /// so is not paid for every event; after a panic it is called again.
    fn work(&self, at: &mut At) {
        while let Ok(item) = self.receiver.recv() {
            if let Some(event) = item {
                self.handle(event, at);
                continue;
            }
            match self.shared.next_control() {
                Some(Control::Flush(token)) => drop(token),
                Some(Control::Sweep(token)) => self.sweep(token),
                Some(Control::Close) | None => break,
            }
        }
    }

    fn handle(&self, event: Arc<Event>, at: &mut At) {
        at.handled += 1;
        self.shared.count_handled(at.handled);
        // Not in this frame: a panic of the observer's is not to unwind through it.
        let event = at.event.insert(event);
        if !self.shared.cut.load(Ordering::Relaxed) {
            at.step = Step::Accepting;
            if self.observer.accepts(event) {
                at.step = Step::Observing;
                self.observer.observe(event);
            }
        }
        at.step = Step::Discarding;
        drop(at.event.take());
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
            crate::aside::error!(
                "the observer of subscription {id} panicked as it was dropped: {text}"
            );
        }
        if let Some(bus) = bus.upgrade() {
            bus.forget(id);
        }
        // Waits for nothing. It is not `try_recv` because that keeps the compiler from
        // inlining what `work` spends its time in.
        while let Ok(item) = receiver.recv_timeout(Duration::ZERO) {
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
        crate::aside::error!("the {what} of subscription {} panicked: {text}", self.id);
    }
}
