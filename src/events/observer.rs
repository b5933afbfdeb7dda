//! Who hears of events.

use std::fmt;
use std::sync::Arc;

use super::event::Event;

/// Somebody who wants to know what happens.
///
/// All of it runs on the one thread of the observer's subscription, so a slow observer delays
/// itself alone. A panic in any of it is logged and contained. A closure over `&Arc<Event>` is an
/// observer.
pub trait Observer: Send + Sync + 'static {
    /// Hears of an event. May publish, subscribe and unsubscribe.
    fn observe(&self, event: &Arc<Event>);

    /// Whether it wants this event, of those that its filter let through. All of them unless it
    /// says otherwise. A panic rejects the event.
    fn accepts(&self, event: &Event) -> bool {
        let _ = event;
        true
    }

    /// Whether it is of no more use, so that its subscription may end. Never unless it says
    /// otherwise. Asked every 60 s and on
    /// [`cleanup_stale_subscriptions`](super::MessageBus::cleanup_stale_subscriptions), after what
    /// was published before.
    fn is_stale(&self) -> bool {
        false
    }

    /// Observers with equal keys count as the same one; without a key an observer is the same
    /// only as itself. Asked once, on the thread that subscribes. None unless it says otherwise.
    fn key(&self) -> Option<ObserverKey> {
        None
    }
}

impl<F: Fn(&Arc<Event>) + Send + Sync + 'static> Observer for F {
    fn observe(&self, event: &Arc<Event>) {
        self(event);
    }
}

/// What makes two observers the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ObserverKey(Arc<str>);

impl ObserverKey {
    /// A key that is equal to every other of the same text.
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for ObserverKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}
