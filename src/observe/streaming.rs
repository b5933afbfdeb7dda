//! One workflow's text and progress, for a person at a console (`OBS-3`).

use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use super::text::lines;
use super::workflow_observer::WorkflowObserver;
use crate::clock::Clock;
use crate::events::{
    ContentStream, Event, EventFamily, EventFilter, EventKind, JobProgress, Observer, ObserverKey,
    ProgressEvent,
};
use crate::job::JobSnapshot;
use crate::sync::Mutex;

const REASONING: &str = "[REASONING";
const TOOLS_TO_EXECUTE: &str = "[TOOLS TO EXECUTE";
const TOOL_COMPLETED: &str = "[TOOL COMPLETED";

/// Writes the text that one workflow's jobs stream, as it comes, and their progress, to any
/// [`Write`].
///
/// Pieces of a stream stand in one line as the model wrote them; the last one ends the line, and
/// `STREAMING COMPLETE` follows. A piece that begins with `[REASONING` stands in a double frame, one
/// that begins with `[TOOLS TO EXECUTE` in a single one, and `[TOOL COMPLETED` is one line with a
/// check mark. Progress reads `Progress: 40% - indexing`. When another job than before streams, a
/// new line begins with that job's name.
///
/// What would control a terminal is spelt out. An output that fails ends the subscription with the
/// next sweep.
///
/// ```
/// use nucleo_runtime::observe::StreamingLogObserver;
/// use nucleo_runtime::{JobDispatcher, JobRequirements, Workflow, job_fn};
/// use std::sync::Arc;
///
/// let dispatcher = JobDispatcher::builder().build()?;
/// dispatcher.start()?;
/// let workflow = Workflow::new("alice", "sums")?;
/// let console = Arc::new(StreamingLogObserver::new(workflow.id(), std::io::stdout()));
/// let _subscription = dispatcher.subscribe(console.filter(), console)?;
/// let job = job_fn(JobRequirements::none, |_, context| {
///     context.publish("counting", Some(40)); // Progress: 40% - counting
///     Ok(6 * 7)
/// });
/// dispatcher.submit(&workflow, job)?.get()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct StreamingLogObserver<W> {
    base: WorkflowObserver<Printer<W>>,
}

/// What writes; the rest is the base's.
struct Printer<W> {
    content: bool,
    progress: bool,
    page: Mutex<Page<W>>,
}

/// The output, and how it stands.
struct Page<W> {
    out: W,
    /// The job whose stream stands in the last line, when that line is still open.
    open: Option<Arc<str>>,
    /// The job that streamed last.
    last: Option<Arc<str>>,
    failed: bool,
}

impl<W: Write + Send + 'static> StreamingLogObserver<W> {
    /// Writes the streams and the progress of the workflow with this id to `out`.
    pub fn new(workflow_id: impl Into<Arc<str>>, out: W) -> Self {
        Self {
            base: WorkflowObserver::new(
                workflow_id,
                Printer {
                    content: true,
                    progress: true,
                    page: Mutex::new(Page {
                        out,
                        open: None,
                        last: None,
                        failed: false,
                    }),
                },
            ),
        }
    }

    /// Whether streamed text is written. Default: yes.
    #[must_use]
    pub fn content(mut self, shown: bool) -> Self {
        self.base.observer_mut().content = shown;
        self
    }

    /// Whether progress is written. Default: yes.
    #[must_use]
    pub fn progress(mut self, shown: bool) -> Self {
        self.base.observer_mut().progress = shown;
        self
    }

    /// As [`WorkflowObserver::until`].
    #[must_use]
    pub fn until(mut self, root_job_id: impl Into<Arc<str>>) -> Self {
        self.base = self.base.until(root_job_id);
        self
    }

    /// As [`WorkflowObserver::stale_after`].
    #[must_use]
    pub fn stale_after(mut self, silence: Duration) -> Self {
        self.base = self.base.stale_after(silence);
        self
    }

    /// As [`WorkflowObserver::clock`].
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.base = self.base.clock(clock);
        self
    }

    /// What to subscribe it to.
    pub fn filter(&self) -> EventFilter {
        self.base
            .filter()
            .family(EventFamily::Progress)
            .kind(EventKind::WorkflowComplete)
    }

    /// As [`WorkflowObserver::wait_ended`].
    #[must_use]
    pub fn wait_ended(&self, timeout: Duration) -> bool {
        self.base.wait_ended(timeout)
    }
}

impl<W: Write + Send + 'static> Observer for StreamingLogObserver<W> {
    fn observe(&self, event: &Arc<Event>) {
        self.base.observe(event);
    }

    fn accepts(&self, event: &Event) -> bool {
        self.base.accepts(event)
    }

    fn is_stale(&self) -> bool {
        self.base.is_stale()
    }

    /// Equal to another of the same workflow, with the same flags, that has a timeout too or none
    /// either.
    fn key(&self) -> Option<ObserverKey> {
        let printer = self.base.observer();
        Some(ObserverKey::new(format!(
            "StreamingLogObserver of {}: content {}, progress {}, timeout {}",
            self.base.workflow_id(),
            printer.content,
            printer.progress,
            self.base.has_timeout()
        )))
    }
}

impl<W: Write + Send + 'static> Observer for Printer<W> {
    fn observe(&self, event: &Arc<Event>) {
        let mut page = self.page.lock();
        if page.failed {
            return;
        }
        let written = match &**event {
            Event::Progress(ProgressEvent::Content(piece)) => self.piece(&mut page, piece),
            Event::Progress(ProgressEvent::Job(progress)) => self.step(&mut page, progress),
            Event::Workflow(_) => page.end_line(),
            _ => Ok(()),
        };
        if let Err(error) = written.and_then(|()| page.out.flush()) {
            page.failed = true;
            drop(page);
            crate::aside::warn!(
                "the output of a streaming observer failed and gets no more: {error}"
            );
        }
    }

    fn is_stale(&self) -> bool {
        self.page.lock().failed
    }
}

impl<W: Write> Printer<W> {
    fn piece(&self, page: &mut Page<W>, piece: &ContentStream) -> io::Result<()> {
        if self.content {
            let text = lines(&piece.chunk);
            if text.starts_with(REASONING) {
                page.frame(&text, &DOUBLE)?;
            } else if text.starts_with(TOOLS_TO_EXECUTE) {
                page.frame(&text, &SINGLE)?;
            } else if text.starts_with(TOOL_COMPLETED) {
                page.line(format_args!(
                    "\u{2713} {}",
                    text.trim_end().replace('\n', " ")
                ))?;
            } else {
                page.inline(&text, &piece.snapshot)?;
            }
            if piece.last {
                page.line(format_args!("STREAMING COMPLETE"))?;
            }
        }
        // The piece itself is not said again.
        match piece.percent() {
            Some(percent) if self.progress => page.line(format_args!("Progress: {percent}%")),
            _ => Ok(()),
        }
    }

    fn step(&self, page: &mut Page<W>, progress: &JobProgress) -> io::Result<()> {
        if !self.progress {
            return Ok(());
        }
        let text = progress.text.as_deref().map(lines);
        match (progress.percent, text) {
            (Some(percent), Some(text)) => page.line(format_args!("Progress: {percent}% - {text}")),
            (Some(percent), None) => page.line(format_args!("Progress: {percent}%")),
            (None, Some(text)) => page.line(format_args!("Progress: {text}")),
            (None, None) => Ok(()),
        }
    }
}

impl<W: Write> Page<W> {
    fn end_line(&mut self) -> io::Result<()> {
        match self.open.take() {
            Some(_) => writeln!(self.out),
            None => Ok(()),
        }
    }

    fn line(&mut self, text: fmt::Arguments<'_>) -> io::Result<()> {
        self.end_line()?;
        writeln!(self.out, "{text}")
    }

    fn inline(&mut self, text: &str, job: &JobSnapshot) -> io::Result<()> {
        let streams = |job_id: &Option<Arc<str>>| job_id.as_deref() == Some(job.job_id());
        if !streams(&self.open) {
            self.end_line()?;
            if self.last.is_some() && !streams(&self.last) {
                write!(self.out, "[{}] ", lines(job.display_name()))?;
            }
        }
        if !streams(&self.last) {
            self.last = Some(job.job_id().into());
        }
        write!(self.out, "{text}")?;
        self.open = match text.ends_with('\n') {
            true => None,
            false => self.last.clone(),
        };
        Ok(())
    }

    fn frame(&mut self, text: &str, frame: &Frame) -> io::Result<()> {
        self.end_line()?;
        let text = text.trim_end();
        let widths = text.lines().map(|line| line.chars().count());
        let width = widths.max().unwrap_or_default();
        let bar = frame.horizontal.repeat(width + 2);
        let [top_left, top_right, bottom_left, bottom_right] = frame.corners;
        writeln!(self.out, "{top_left}{bar}{top_right}")?;
        for line in text.lines() {
            let side = frame.vertical;
            // By hand: a formatter's width has a limit, and a model's line has none.
            let blank = " ".repeat(width.saturating_sub(line.chars().count()));
            writeln!(self.out, "{side} {line}{blank} {side}")?;
        }
        writeln!(self.out, "{bottom_left}{bar}{bottom_right}")
    }
}

struct Frame {
    horizontal: &'static str,
    vertical: char,
    corners: [char; 4],
}

const SINGLE: Frame = Frame {
    horizontal: "\u{2500}",
    vertical: '\u{2502}',
    corners: ['\u{250c}', '\u{2510}', '\u{2514}', '\u{2518}'],
};

const DOUBLE: Frame = Frame {
    horizontal: "\u{2550}",
    vertical: '\u{2551}',
    corners: ['\u{2554}', '\u{2557}', '\u{255a}', '\u{255d}'],
};

impl<W> fmt::Debug for Printer<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Printer")
            .field("content", &self.content)
            .field("progress", &self.progress)
            .finish_non_exhaustive()
    }
}

impl<W> fmt::Debug for StreamingLogObserver<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StreamingLogObserver")
            .field(&self.base)
            .finish()
    }
}
