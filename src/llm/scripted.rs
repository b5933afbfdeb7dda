//! A model without a network: it answers from a script, or from a function of the conversation
//! (`LLM-5`).
//!
//! # Invariants
//!
//! 1. The same calls in the same order get the same answers in the same pieces; time is the
//!    clock's.
//! 2. A call that waits ends when its job is told to stop.
//! 3. The function runs with no lock held. A call's step is taken before its latency begins.

use std::collections::VecDeque;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use super::client::{CallOptions, LlmClient, StreamChunk};
use super::conversation::Conversation;
use super::response::{LlmResponse, StopReason, Usage};
use crate::clock::{Clock, SystemClock, WaitCell};
use crate::error::JobError;
use crate::job::JobContext;
use crate::models::{ModelSpec, estimate_tokens};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

mod plain;
mod step;

use step::Outcome;
pub use step::Step;

/// About a line of text, so that a stream of a paragraph comes in several pieces.
const PIECE_CHARS: NonZeroUsize = NonZeroUsize::new(64).unwrap();

/// Bytes of a text that count as one token; see [`estimate_tokens`].
const BYTES_PER_TOKEN: usize = 4;

/// A model that answers from a script or from a function of the conversation: for tests, and for
/// trying things out without a provider.
///
/// ```
/// use nucleo_runtime::llm::{ScriptedClient, Step};
/// use std::time::Duration;
///
/// // The first call fails as an overloaded provider does, the second is answered.
/// let script = ScriptedClient::from_steps([Step::overload(), Step::reply("42")]);
///
/// // Every call is answered, each in 50 ms.
/// let echo = ScriptedClient::from_fn(|call| {
///     call.conversation.last().map_or_else(String::new, |message| message.text.to_string())
/// })
/// .latency(Duration::from_millis(50));
/// assert_eq!(script.calls() + echo.calls(), 0);
/// ```
pub struct ScriptedClient {
    source: Source,
    latency: Duration,
    piece_chars: NonZeroUsize,
    clock: Arc<dyn Clock>,
    calls: AtomicU64,
}

type Answer = dyn Fn(&ScriptedCall<'_>) -> Step + Send + Sync;

enum Source {
    Steps(Mutex<VecDeque<Step>>),
    Function(Box<Answer>),
}

/// What a scripted model is asked.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ScriptedCall<'a> {
    /// Which call of the client it is, from 1.
    pub number: u64,
    /// The model that the call is meant for.
    pub model: &'a ModelSpec,
    /// What was said so far.
    pub conversation: &'a Conversation,
    /// How the call differs from the usual.
    pub options: &'a CallOptions,
}

impl ScriptedClient {
    fn new(source: Source) -> Self {
        Self {
            source,
            latency: Duration::ZERO,
            piece_chars: PIECE_CHARS,
            clock: Arc::new(SystemClock),
            calls: AtomicU64::new(0),
        }
    }

    /// Takes one step a call, in order. A call past the last step fails, naming its number.
    pub fn from_steps<S: Into<Step>>(steps: impl IntoIterator<Item = S>) -> Self {
        let steps = steps.into_iter().map(Into::into).collect();
        Self::new(Source::Steps(Mutex::new(steps)))
    }

    /// Does at each call what `answer` makes of it. It may be called from several threads at once.
    pub fn from_fn<S: Into<Step>>(
        answer: impl Fn(&ScriptedCall<'_>) -> S + Send + Sync + 'static,
    ) -> Self {
        Self::new(Source::Function(Box::new(move |call| answer(call).into())))
    }

    /// How long each call takes, unless its step says otherwise. None unless set.
    #[must_use]
    pub fn latency(mut self, latency: Duration) -> Self {
        self.latency = latency;
        self
    }

    /// How many characters a piece of a stream has, but for the last. 64 unless set.
    #[must_use]
    pub fn piece_chars(mut self, chars: NonZeroUsize) -> Self {
        self.piece_chars = chars;
        self
    }

    /// The source of time for calls outside of any job; in a job it is the job's. The system's
    /// unless set.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// How many calls have begun.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    /// How many steps are left; `None` for a client that answers from a function.
    #[must_use]
    pub fn steps_left(&self) -> Option<usize> {
        match &self.source {
            Source::Steps(steps) => Some(steps.lock().len()),
            Source::Function(_) => None,
        }
    }

    /// What this call does.
    fn begin(&self, model: &ModelSpec, conversation: &Conversation, options: &CallOptions) -> Step {
        let number = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        match &self.source {
            Source::Function(answer) => answer(&ScriptedCall {
                number,
                model,
                conversation,
                options,
            }),
            Source::Steps(steps) => {
                let step = steps.lock().pop_front();
                step.unwrap_or_else(|| {
                    Step::fail(JobError::illegal_state(format!(
                        "the script has no step for call {number}: add one, or answer from a \
                         function"
                    )))
                    .taking(Duration::ZERO)
                })
            }
        }
    }

    /// Lets time pass, until the calling thread's job is told to stop at the latest.
    fn pass(&self, time: Duration) -> Result<(), JobError> {
        if let Some(job) = JobContext::current() {
            return job.sleep(time);
        }
        let cell = WaitCell::new();
        let deadline = self.clock.now().checked_add(time);
        loop {
            let seen = cell.epoch();
            if deadline.is_some_and(|deadline| self.clock.now() >= deadline) {
                return Ok(());
            }
            self.clock.wait_until(&cell, seen, deadline);
        }
    }

    /// Lets the call's time pass, handing out `text` piece by piece on the way.
    fn deliver(
        &self,
        text: &str,
        ends: bool,
        latency: Duration,
        deliver: &mut dyn FnMut(StreamChunk),
    ) -> Result<(), JobError> {
        let pieces = pieces(text, self.piece_chars);
        let count = u32::try_from(pieces.len()).unwrap_or(u32::MAX).max(1);
        let each = latency / count;
        self.pass(latency - each * count)?;
        for (index, piece) in pieces.iter().enumerate() {
            self.pass(each)?;
            deliver(StreamChunk::new(*piece, ends && index + 1 == pieces.len()));
        }
        Ok(())
    }
}

/// How a call ends once its time has passed.
struct Ending {
    /// What a stream delivers.
    text: String,
    result: Result<LlmResponse, JobError>,
}

impl Step {
    fn ending(self, model: &ModelSpec, said: &Conversation, options: &CallOptions) -> Ending {
        let ceiling = options.max_output_tokens;
        match self.outcome {
            Outcome::Reply(mut text) => {
                let written = estimate_tokens(&text);
                if written > ceiling {
                    text.truncate(fitting(&text, ceiling));
                    return Ending {
                        result: Ok(cut_off(&text, said, ceiling)),
                        text,
                    };
                }
                let usage = Usage::new(said.estimated_tokens().into(), written.into());
                Ending {
                    result: Ok(LlmResponse::new(&*text, usage)),
                    text,
                }
            }
            Outcome::Response(response) => Ending {
                text: response.text().to_owned(),
                result: Ok(response),
            },
            Outcome::Truncated => Ending {
                result: Ok(cut_off(&self.delivered, said, ceiling)),
                text: self.delivered,
            },
            Outcome::Fail(failure) => Ending {
                text: self.delivered,
                result: Err(failure.on(model)),
            },
        }
    }
}

/// An answer that ran into its ceiling, all of which was written and is billed.
fn cut_off(text: &str, said: &Conversation, ceiling: u32) -> LlmResponse {
    let usage = Usage::new(said.estimated_tokens().into(), ceiling.into());
    LlmResponse::new(text, usage).stopped_by(StopReason::MaxTokens)
}

/// Whether an answer is all there.
fn is_whole(result: &Result<LlmResponse, JobError>) -> bool {
    matches!(result, Ok(answer) if answer.stop_reason != StopReason::MaxTokens)
}

/// How many bytes of the text are `tokens` tokens, as far as whole characters go.
fn fitting(text: &str, tokens: u32) -> usize {
    let bytes = usize::try_from(tokens)
        .unwrap_or(usize::MAX)
        .saturating_mul(BYTES_PER_TOKEN);
    (0..=bytes.min(text.len()))
        .rev()
        .find(|end| text.is_char_boundary(*end))
        .unwrap_or(0)
}

impl LlmClient for ScriptedClient {
    fn respond(
        &self,
        model: &ModelSpec,
        conversation: &Conversation,
        options: &CallOptions,
    ) -> Result<LlmResponse, JobError> {
        let step = self.begin(model, conversation, options);
        self.pass(step.latency.unwrap_or(self.latency))?;
        step.ending(model, conversation, options).result
    }

    fn stream(
        &self,
        model: &ModelSpec,
        conversation: &Conversation,
        options: &CallOptions,
        deliver: &mut dyn FnMut(StreamChunk),
    ) -> Result<LlmResponse, JobError> {
        let step = self.begin(model, conversation, options);
        let latency = step.latency.unwrap_or(self.latency);
        let Ending { text, result } = step.ending(model, conversation, options);
        // An answer without text has a last piece all the same; a failure has none.
        let whole = is_whole(&result);
        if text.is_empty() && !whole {
            self.pass(latency)?;
        } else {
            self.deliver(&text, whole, latency, deliver)?;
        }
        result
    }
}

/// The text in pieces of so many characters, the last one shorter; one empty piece of an empty
/// text.
fn pieces(text: &str, chars: NonZeroUsize) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut rest = text;
    loop {
        match rest.char_indices().nth(chars.get()) {
            Some((end, _)) => {
                let (piece, after) = rest.split_at(end);
                pieces.push(piece);
                rest = after;
            }
            None => {
                pieces.push(rest);
                return pieces;
            }
        }
    }
}

impl fmt::Debug for ScriptedClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScriptedClient")
            .field("steps_left", &self.steps_left())
            .field("latency", &self.latency)
            .field("calls", &self.calls())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use crate::error::{ErrorKind, RetrySignal, UpstreamFailure};
    use crate::llm::template;
    use crate::models::ModelBound;
    use std::num::NonZeroU32;
    use std::thread;

    fn spec() -> ModelSpec {
        ModelSpec::new("m", "p", ModelBound::Concurrency(NonZeroU32::MIN))
            .and_then(|spec| spec.limits(1_000, 100))
            .unwrap()
    }

    fn ask(client: &ScriptedClient, ceiling: u32) -> Result<LlmResponse, JobError> {
        let said = Conversation::new().system("Add.").user("1 + 1");
        client
            .respond(&spec(), &said, &CallOptions::new(ceiling))
            .and_then(|answer| template::conclude(&spec(), ceiling, answer))
    }

    fn pieces_of(client: &ScriptedClient) -> (Vec<(String, bool)>, Result<LlmResponse, JobError>) {
        let mut pieces = Vec::new();
        let said = Conversation::new().user("go on");
        let options = CallOptions::new(50);
        let result = client.stream(&spec(), &said, &options, &mut |chunk| {
            pieces.push((chunk.text, chunk.last));
        });
        let result = result.and_then(|answer| template::conclude(&spec(), 50, answer));
        (pieces, result)
    }

    #[test]
    fn steps_are_taken_in_order_and_a_call_past_the_last_says_which_it_is() {
        let client = ScriptedClient::from_steps(["two", "three"]);
        assert_eq!(client.steps_left(), Some(2));
        assert_eq!(ask(&client, 10).unwrap().text(), "two");
        let third = ask(&client, 10).unwrap();
        assert_eq!(
            (third.text(), third.usage),
            ("three", Usage::new(1 + 2, 2)),
            "tokens are estimated, each message rounded up"
        );
        let error = ask(&client, 10).unwrap_err();
        assert!(error.to_string().contains("call 3"), "{error}");
        assert_eq!((client.calls(), client.steps_left()), (3, Some(0)));
    }

    #[test]
    fn a_function_sees_the_whole_call() {
        let client = ScriptedClient::from_fn(|call| {
            format!(
                "{}:{}:{}:{}",
                call.number,
                call.model.id,
                call.conversation.messages().len(),
                call.options.max_output_tokens
            )
        });
        assert_eq!(ask(&client, 10).unwrap().text(), "1:m:2:10");
        assert_eq!(ask(&client, 20).unwrap().text(), "2:m:2:20");
    }

    #[test]
    fn failures_are_those_of_a_provider() {
        let client = ScriptedClient::from_steps([
            Step::rate_limit().retry_after(Duration::from_secs(7)),
            Step::overload(),
            Step::transient(),
            Step::refusal("harm", "no"),
            Step::malformed("<html>"),
            Step::fail(JobError::unauthorized("p", "expired")),
        ]);
        let next = || ask(&client, 10).unwrap_err();

        let limited = next();
        let Some(RetrySignal::RateLimit(signal)) = limited.retry_signal() else {
            panic!("{limited}");
        };
        assert_eq!(signal.provider, "p");
        let status = |error: &JobError| error.upstream_failure().map(|failure| failure.status);
        assert_eq!(status(&limited), Some(429));
        assert_eq!(
            limited.retry_signal().and_then(RetrySignal::retry_after),
            Some(Duration::from_secs(7))
        );
        let overloaded = next();
        assert!(matches!(
            overloaded.retry_signal(),
            Some(RetrySignal::Overload(_))
        ));
        assert_eq!(status(&overloaded), Some(529));
        let transient = next();
        assert!(matches!(
            transient.retry_signal(),
            Some(RetrySignal::Transient(_))
        ));
        assert_eq!(status(&transient), Some(503));
        let refused = next();
        assert!(
            matches!(refused.kind(), ErrorKind::ProviderRefusal { model, category, .. }
                if model == "m" && category == "harm")
        );
        let malformed = next();
        assert!(
            matches!(malformed.kind(), ErrorKind::ExternalService { service, details }
            if service == "p" && details.contains("<html>"))
        );
        assert!(matches!(next().kind(), ErrorKind::Unauthorized { .. }));
    }

    #[test]
    fn an_answer_past_its_ceiling_is_cut_off_while_a_larger_one_exists() {
        let client = ScriptedClient::from_steps([
            Step::reply("x".repeat(41)),
            Step::truncated(),
            Step::truncated(),
            Step::reply("x".repeat(40)),
        ]);
        let budget = |ceiling| match ask(&client, ceiling).unwrap_err().retry_signal() {
            Some(RetrySignal::OutputTruncation(cut)) => Some((cut.previous, cut.next)),
            _ => None,
        };
        assert_eq!(budget(10), Some((10, Some(20))));
        assert_eq!(budget(70), Some((70, Some(100))));
        assert_eq!(budget(100), None, "the model writes no more than that");
        assert!(ask(&client, 10).is_ok());
    }

    #[test]
    fn a_stream_comes_in_pieces_of_whole_characters_and_marks_the_last() {
        let client = ScriptedClient::from_steps([Step::reply("äöüß"), Step::reply("")])
            .piece_chars(NonZeroUsize::new(3).unwrap());
        let (pieces, result) = pieces_of(&client);
        assert_eq!(pieces, [("äöü".to_owned(), false), ("ß".to_owned(), true)]);
        assert_eq!(result.unwrap().text(), "äöüß");
        assert_eq!(pieces_of(&client).0, [(String::new(), true)]);
    }

    #[test]
    fn a_stream_that_fails_has_delivered_what_its_step_says_and_no_last_piece() {
        let client = ScriptedClient::from_steps([
            Step::overload(),
            Step::overload().after_delivering("so far"),
            Step::reply("x".repeat(210)),
        ]);
        assert_eq!(pieces_of(&client).0, []);
        let (pieces, result) = pieces_of(&client);
        assert_eq!(pieces, [("so far".to_owned(), false)]);
        assert!(result.is_err());
        let (pieces, result) = pieces_of(&client);
        assert_eq!(
            pieces.iter().map(|(text, _)| text.len()).sum::<usize>(),
            200,
            "what fits into the ceiling of 50 tokens"
        );
        assert!(pieces.iter().all(|(_, last)| !last));
        assert!(result.unwrap_err().retry_signal().is_some());
    }

    #[test]
    fn text_is_cut_between_characters() {
        assert_eq!(fitting("äöü", 1), 4);
        assert_eq!(fitting("aäöü", 1), 3);
        assert_eq!(fitting("aä", u32::MAX), 3);
    }

    #[test]
    fn outside_of_any_job_latency_is_the_clients_clock() {
        let clock = ManualClock::new();
        let client = ScriptedClient::from_steps([
            Step::reply("slow"),
            Step::reply("slower").taking(Duration::from_secs(9)),
        ])
        .latency(Duration::from_secs(2))
        .clock(Arc::new(clock.clone()));
        thread::scope(|scope| {
            let caller = scope.spawn(|| (ask(&client, 10), clock.elapsed(), ask(&client, 10)));
            // Each advance is less than a call takes, so no wait can be skipped over.
            while !caller.is_finished() {
                clock.advance(Duration::from_secs(1));
                thread::yield_now();
            }
            let (slow, after, slower) = caller.join().unwrap();
            assert_eq!(slow.unwrap().text(), "slow");
            assert!(after >= Duration::from_secs(2));
            assert_eq!(slower.unwrap().text(), "slower");
            assert!(clock.elapsed() >= after + Duration::from_secs(9));
        });
    }

    #[test]
    fn upstream_failures_name_the_provider() {
        let error = ask(&ScriptedClient::from_steps([Step::transient()]), 1).unwrap_err();
        let failure: Option<UpstreamFailure> = error.upstream_failure();
        assert_eq!(failure.map(|failure| failure.service), Some("p".to_owned()));
    }
}
