//! What limits tell.

use std::sync::Arc;
use std::time::Duration;

use nucleo_runtime::events::{
    Event, EventFilter, EventKind, LimiterChange, RejectReason, Subscription,
};
use nucleo_runtime::testing::EventRecorder;

use super::line::Line;

/// Hears the limiter events of a line.
pub(crate) struct Told {
    recorder: Arc<EventRecorder>,
    _subscription: Subscription,
}

/// One of them: the account, what happened, why, how many wait there now and how long it took.
pub(crate) type Change = (String, LimiterChange, Option<RejectReason>, usize, Duration);

impl Told {
    pub(crate) fn by(line: &Line) -> Self {
        line.bus.start();
        let recorder = EventRecorder::new();
        let filter = EventFilter::all().kind(EventKind::Limiter);
        let subscription = line.bus.subscribe(filter, recorder.clone()).unwrap();
        Self {
            recorder,
            _subscription: subscription,
        }
    }

    /// Everything that was told up to now; nothing is told after it.
    pub(crate) fn all(self, line: &Line) -> Vec<Change> {
        line.bus.stop().unwrap();
        let events = self.recorder.events();
        let changes = events.iter().filter_map(|event| match &**event {
            Event::Limiter(event) => {
                assert!(event.snapshot.is_some(), "{event:?}");
                Some((
                    event.account.to_string(),
                    event.change,
                    event.reason,
                    event.waiters,
                    event.wait,
                ))
            }
            _ => None,
        });
        changes.collect()
    }
}
