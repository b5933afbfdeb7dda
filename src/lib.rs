//! A job runtime for agents, synchronous and on OS threads.
//!
//! Every model call, tool call and agent loop is a job. A job says what it needs and gets all of it
//! at once, or waits holding nothing; so many agents share few connections, no request is sent before
//! it fits its provider's quota, and nothing deadlocks on what it holds.
//!
//! # A job, and its result
//!
//! ```
//! use nucleo_runtime::{Job, JobContext, JobDispatcher, JobError, JobResources, Workflow};
//! use std::time::Duration;
//!
//! struct CountWords {
//!     text: String,
//! }
//!
//! impl Job for CountWords {
//!     type Output = usize;
//!
//!     fn execute(&mut self, _: &JobResources, _: &JobContext) -> Result<usize, JobError> {
//!         Ok(self.text.split_whitespace().count())
//!     }
//! }
//!
//! let dispatcher = JobDispatcher::builder().build()?;
//! dispatcher.start()?;
//! let workflow = Workflow::new("alice", "words")?;
//! let text = "once upon a time".to_owned();
//! let handle = dispatcher.submit(&workflow, CountWords { text })?;
//! assert_eq!(*handle.get()?, 4);
//! dispatcher.shutdown(Duration::from_secs(5))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The [`JobDispatcher`] runs jobs, each on a thread of its own. A [`Workflow`] says on whose behalf.
//! [`submit`](JobDispatcher::submit) answers a [`JobHandle`], whose [`get`](JobHandle::get) waits.
//! Inside, a [`JobContext`] says who the job is, how much time it has and whether it is to stop. What
//! goes wrong is a [`JobError`], which knows whether its caller can do better. For the small cases
//! there is [`job_fn`].
//!
//! # What a job holds
//!
//! A job declares it in [`requirements`](Job::requirements): permits of limits
//! ([`admission`]), connections of databases ([`db`]), tokens of a model ([`models`], [`llm`]).
//!
//! ```
//! use nucleo_runtime::admission::CountingGate;
//! use nucleo_runtime::{JobRequirements, job_fn};
//! use std::sync::Arc;
//!
//! let scanner = Arc::new(CountingGate::new("scanner", 1)?);
//! let scan = job_fn(
//!     move || JobRequirements::none().permit(&scanner).http_connection(),
//!     |_, _| Ok("a page".to_owned()),
//! );
//! # Ok::<(), nucleo_runtime::JobError>(())
//! ```
//!
//! Everything goes back before the result is seen, also after a panic or a timeout. A job that holds
//! anything may not wait for another job: [`get`](JobHandle::get) refuses that.
//!
//! # Jobs that make other jobs
//!
//! A [`Doer`] submits jobs and waits for them. It holds nothing, and nobody else submits from inside
//! a job: both are held by the types.
//!
//! ```
//! use nucleo_runtime::{Doer, JobError, JobHandle, JobRequirements, OrchestratorContext, job_fn};
//!
//! struct SumOfSquares(i64);
//!
//! impl Doer for SumOfSquares {
//!     type Output = i64;
//!
//!     fn execute(&mut self, context: &OrchestratorContext) -> Result<i64, JobError> {
//!         context.next_step();
//!         let squares = (1..=self.0)
//!             .map(|n| context.submit_in_current_step(job_fn(JobRequirements::none, move |_, _| Ok(n * n))))
//!             .collect::<Result<Vec<_>, _>>()?;
//!         Ok(JobHandle::join_all(&squares)?.iter().map(|square| **square).sum())
//!     }
//! }
//! # use nucleo_runtime::{JobDispatcher, Workflow};
//! # let dispatcher = JobDispatcher::builder().build()?;
//! # dispatcher.start()?;
//! # let workflow = Workflow::new("alice", "sums")?;
//! # assert_eq!(*dispatcher.submit(&workflow, SumOfSquares(3))?.get()?, 14);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A job may also be submitted [`after`](Submission::after) others: it waits for them without a
//! thread, and finds their results on its context.
//!
//! # Models
//!
//! A job says how much model it needs; a catalog says which model that is, and what it costs
//! ([`models`], [`llm`]).
//!
//! ```
//! use nucleo_runtime::llm::{Conversation, ScriptedClient};
//! use nucleo_runtime::models::{Catalog, Depth, Grade, ModelSlot, OutputSize};
//! use nucleo_runtime::{JobDispatcher, JobRequirements, Workflow, job_fn};
//! use std::sync::Arc;
//!
//! const ANSWER: ModelSlot = ModelSlot::new("answer");
//!
//! let dispatcher = JobDispatcher::builder()
//!     .catalog(Catalog::starter())
//!     .client("scripted", Arc::new(ScriptedClient::from_fn(|_| "42")))
//!     .build()?;
//! dispatcher.start()?;
//! let ask = job_fn(
//!     || JobRequirements::none().model(ANSWER, Grade::Small, Depth::Quick, 20, OutputSize::Verdict),
//!     |resources, _| {
//!         let question = Conversation::new().user("What is six times seven?");
//!         Ok(resources.model(ANSWER)?.client().respond(&question)?.text().to_owned())
//!     },
//! );
//! let workflow = Workflow::new("alice", "questions")?;
//! assert_eq!(*dispatcher.submit(&workflow, ask)?.get()?, "42");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What may be reached
//!
//! What a model writes is untrusted. A flow is bound to a scope and every submission in it is judged
//! at the door; guards judge who asks, with what, and what comes out ([`guard`]).
//!
//! # What happens
//!
//! Everything that happens is an event on the bus ([`events`]); publishing never waits. [`observe`]
//! has observers for a log, a console and the tree of a run.
//!
//! # When it goes wrong
//!
//! A job has a timeout, in two steps: it is asked to stop and what it holds is closed; after a grace
//! what it holds is severed, and its handle answers. Rust cannot kill a thread, so one that ignores
//! both is left behind and listed under [`unresponsive`](JobDispatcher::unresponsive). A provider that
//! rate-limits, is overloaded or fails has the attempt run again ([`RetrySignal`]). A panic fails its
//! job and nothing else. Beyond reach are a panic during another, a stack overflow, memory that runs
//! out, and a program built with `panic = "abort"`.
//!
//! # Testing
//!
//! Time is a [`Clock`]; under a [`ManualClock`] a test owns it. [`testing`] has the rest: a recorder
//! of events, "and nothing more happens", and contracts for limits and providers of your own.
//!
//! # Features
//!
//! `sqlite` brings SQLite through rusqlite, `serde` brings `Serialize` for snapshots, `catalog-file`
//! reads catalogs of models from TOML and JSON, `full` brings all of them. None is on by default.
//!
//! The repository has a guide (`docs/guide`), the rules with their ids (`docs/contract.md`) and the
//! map of the code (`docs/architecture.md`).
#![deny(unsafe_code)]

pub mod admission;
mod aside;
mod blank;
#[cfg(target_os = "linux")]
mod cgroup;
mod clock;
pub mod db;
mod dispatcher;
mod error;
pub mod events;
pub mod guard;
mod job;
pub mod llm;
#[cfg(all(test, nucleo_model))]
mod model_check;
pub mod models;
pub mod observe;
mod sync;
pub mod testing;
mod threads;
mod unwind;

pub use clock::{Clock, ManualClock, SystemClock, WaitCell};
pub use dispatcher::{
    BuildError, DelayedHandle, Doer, FnDoer, JobDispatcher, JobDispatcherBuilder, Leaf,
    LimiterRegistry, Orchestrator, OrchestratorContext, Parent, ShutdownError, ShutdownReport,
    StopOnce, Stoppable, Submission, Submit, SubmitError, ThreadCounts, Unresponsive,
    UnresponsiveReason, doer_fn, governor,
};
pub use error::{
    ContextOverflow, CorrectionSignal, ErrorKind, HttpFailure, JobError, ResultExt, RetrySignal,
    TruncationSignal, UpstreamFailure, UpstreamSignal, failure_text, says_out_of_money,
};
pub use job::{
    CancellationToken, DEFAULT_TIMEOUT, DEFAULT_UPSTREAM_RETRIES, FnJob, Job, JobContext,
    JobHandle, JobRequirements, JobResources, JobSnapshot, JobState, JobType, Metadata,
    MetadataValue, ModelAccess, Workflow, job_fn,
};

/// The README and the guide, so that their snippets are compiled and run as tests.
#[cfg(doctest)]
mod guide {
    #[doc = include_str!("../README.md")]
    mod readme {}
    #[doc = include_str!("../docs/guide/first-job.md")]
    mod first_job {}
    #[doc = include_str!("../docs/guide/resources.md")]
    mod resources {}
    #[doc = include_str!("../docs/guide/models.md")]
    mod models {}
    #[doc = include_str!("../docs/guide/orchestrators.md")]
    mod orchestrators {}
    #[doc = include_str!("../docs/guide/dependencies.md")]
    mod dependencies {}
    #[doc = include_str!("../docs/guide/events.md")]
    mod events {}
    #[doc = include_str!("../docs/guide/testing-your-jobs.md")]
    mod testing_your_jobs {}
}
