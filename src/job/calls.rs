//! The model calls of a job (`CTX-7`), those that have not come back among them.
//!
//! # Invariants
//!
//! 1. A call is on record from before it is sent: whoever closes the record finds every call, and one
//!    that is still out stands in it as it was entered, with the most that it may cost.
//! 2. Once the record is closed nothing begins, and what comes back changes nothing.

use std::time::SystemTime;

use crate::events::ModelCall;

#[derive(Debug, Default)]
pub(crate) struct CallRecord {
    done: Vec<ModelCall>,
    /// By their numbers, as they stand should they never come back.
    out: Vec<(u64, ModelCall)>,
    begun: u64,
    closed: bool,
}

impl CallRecord {
    /// Enters a call that is about to be sent. `None` when the record is closed.
    pub(crate) fn begin(&mut self, out: ModelCall) -> Option<u64> {
        if self.closed {
            return None;
        }
        self.begun += 1;
        self.out.push((self.begun, out));
        Some(self.begun)
    }

    /// The call came back. Answers what it stood for until now, to be dropped elsewhere.
    pub(crate) fn end(&mut self, number: u64, call: ModelCall) -> Option<ModelCall> {
        let Some(place) = self.out.iter().position(|(out, _)| *out == number) else {
            return Some(call);
        };
        let (_, out) = self.out.remove(place);
        self.done.push(call);
        Some(out)
    }

    /// Every call so far: what came back, in its order, then what is out.
    pub(crate) fn all(&self, now: SystemTime) -> Vec<ModelCall> {
        let mut all = self.done.clone();
        all.extend(self.out.iter().map(|(_, call)| ended(call.clone(), now)));
        all
    }

    /// As [`all`](Self::all), and lets them go.
    pub(crate) fn close(&mut self, now: SystemTime) -> Vec<ModelCall> {
        self.closed = true;
        let mut all = std::mem::take(&mut self.done);
        let out = std::mem::take(&mut self.out);
        all.extend(out.into_iter().map(|(_, call)| ended(call, now)));
        all
    }
}

fn ended(mut call: ModelCall, now: SystemTime) -> ModelCall {
    call.ended_at = now;
    call
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::ModelKind;
    use std::time::Duration;

    fn call(model: &str, estimated: bool) -> ModelCall {
        ModelCall {
            model: model.into(),
            served: None,
            kind: ModelKind::Llm,
            purpose: None,
            successful: !estimated,
            stop_reason: None,
            usage: None,
            cost: None,
            estimated,
            reason: None,
            cause: None,
            started_at: SystemTime::UNIX_EPOCH,
            ended_at: SystemTime::UNIX_EPOCH,
        }
    }

    fn told(calls: &[ModelCall]) -> Vec<(&str, bool)> {
        calls
            .iter()
            .map(|call| (&*call.model, call.estimated))
            .collect()
    }

    #[test]
    fn a_call_is_on_record_from_before_it_is_sent_until_the_record_is_closed() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(9);
        let mut record = CallRecord::default();
        let first = record.begin(call("a", true)).unwrap();
        let second = record.begin(call("b", true)).unwrap();
        assert!(record.end(second, call("b", false)).is_some());
        let all = [("b", false), ("a", true)];
        assert_eq!(told(&record.all(now)), all);
        let closed = record.close(now);
        assert_eq!(told(&closed), all);
        assert_eq!(closed[1].ended_at, now);
        // Too late for either.
        assert!(record.begin(call("c", true)).is_none());
        assert!(record.end(first, call("a", false)).is_some());
        assert!(record.close(now).is_empty());
    }
}
