//! The handle of one subscription.

use std::fmt;
use std::io;
use std::sync::Weak;

use super::bus::Inner;

/// The name of a subscription, unique on its bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SubscriptionId(u64);

impl SubscriptionId {
    /// The id of a subscription that changed nothing.
    pub const NOOP: Self = Self(0);

    /// The `ordinal`-th subscription, from 1.
    pub(super) fn nth(ordinal: u64) -> Self {
        Self(ordinal)
    }
}

impl fmt::Display for SubscriptionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NOOP => f.pad("noop"),
            Self(ordinal) => write!(f, "sub-{ordinal}"),
        }
    }
}

/// A place on the bus. It ends when this is dropped, unless it was
/// [detached](Subscription::detach).
///
/// Ending never blocks, also from inside `observe`. What was already enqueued is still delivered,
/// and nothing more.
#[must_use = "a subscription that is dropped ends; keep it, or detach it"]
pub struct Subscription {
    id: SubscriptionId,
    /// Weak: a subscription does not keep a bus alive. Dangling in a no-op.
    bus: Weak<Inner>,
}

impl Subscription {
    pub(super) fn new(id: SubscriptionId, bus: Weak<Inner>) -> Self {
        Self { id, bus }
    }

    /// What a second subscription of one observer is.
    pub(super) fn noop() -> Self {
        Self::new(SubscriptionId::NOOP, Weak::new())
    }

    /// Its id; [`SubscriptionId::NOOP`] for one that changed nothing.
    #[must_use]
    pub fn id(&self) -> SubscriptionId {
        self.id
    }

    /// Whether it changed nothing, because the observer was subscribed already. Its end changes
    /// nothing either.
    #[must_use]
    pub fn is_noop(&self) -> bool {
        self.id == SubscriptionId::NOOP
    }

    /// Ends it. The same as dropping it.
    pub fn unsubscribe(self) {
        drop(self);
    }

    /// Lets it go on until the bus stops or its observer is stale.
    pub fn detach(mut self) {
        self.bus = Weak::new();
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(bus) = self.bus.upgrade() {
            bus.unsubscribe(self.id);
        }
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Subscription")
            .field(&format_args!("{}", self.id))
            .finish()
    }
}

/// How full a subscription's queue is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SubscriptionStatus {
    /// Which subscription.
    pub id: SubscriptionId,
    /// How many events wait for its observer.
    pub waiting: u64,
    /// How many were dropped because too many waited.
    pub dropped: u64,
}

/// Why a subscription was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SubscribeError {
    /// The bus is stopping or has stopped.
    #[error("the bus has been stopped and takes no more subscriptions; build another")]
    Stopped,
    /// Each subscription needs a thread, and there are as many as there may be.
    #[error("all {cap} threads are in use and a subscription needs one; raise the thread cap")]
    NoThread {
        /// How many threads the runtime may have.
        cap: usize,
    },
    /// The system refused to start a thread.
    #[error("the system refused to start the subscription's thread")]
    Spawn(#[source] io::Error),
}
