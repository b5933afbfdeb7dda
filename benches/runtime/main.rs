//! How fast the runtime is, each figure beside a floor that is measured in the same run.
//!
//! `cargo bench --bench runtime` prints a table; `-- --json` one JSON object a line and a summary as
//! the last; `-- --quick` is over in under 50 seconds; `-- B1 B4` measures only these. What each row
//! means, and which were reached, is in `docs/performance.md`; `-- --probe B1` and `-- --probe B2`
//! measure the steps to a job, for the bounds that are argued there.
//!
//! Each row runs in a process of its own, so that none finds the memory or the threads of another.
//! Those that measure one thing at a time run on one CPU (`taskset -c 0`, where there is one), for
//! waking a thread on an idle CPU takes longer than all that is measured here.

mod bus;
mod jobs;
mod line;
mod memory;
mod report;
mod roots;
mod steps;
mod tokens;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, ExitCode, Stdio};

use report::Row;

/// How a row is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// Fewer rounds and shorter windows.
    pub(crate) quick: bool,
}

impl Effort {
    /// `full`, or `quick` when it is to be quick.
    pub(crate) fn pick<T>(self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }
}

/// `wanted`, or fewer where the system would not let one process have as many: the standard library
/// ends a process that asks for more.
pub(crate) fn as_many_threads_as(wanted: usize) -> usize {
    let cap = nucleo_runtime::JobDispatcher::builder()
        .build()
        .map_or(0, |dispatcher| dispatcher.threads().cap);
    wanted.min(cap.saturating_sub(64)).max(1)
}

struct Bench {
    id: &'static str,
    /// On one CPU.
    pinned: bool,
    run: fn(Effort, &mut dyn FnMut(Row)),
}

const BENCHES: &[Bench] = &[
    Bench {
        id: "B1",
        pinned: true,
        run: jobs::one_at_a_time,
    },
    Bench {
        id: "B2",
        pinned: true,
        run: jobs::in_bursts,
    },
    Bench {
        id: "B3",
        pinned: false,
        run: jobs::through_a_gate,
    },
    Bench {
        id: "B4",
        pinned: true,
        run: line::draining,
    },
    Bench {
        id: "B5",
        pinned: true,
        run: bus::publishing,
    },
    Bench {
        id: "B6",
        pinned: false,
        run: memory::parked,
    },
    Bench {
        id: "B7",
        pinned: false,
        run: memory::subscriptions,
    },
    Bench {
        id: "B8",
        pinned: false,
        run: tokens::used,
    },
    Bench {
        id: "B9",
        pinned: false,
        run: tokens::lateness,
    },
    Bench {
        id: "B10",
        pinned: false,
        run: roots::many,
    },
];

/// What a process that measures one row says before each of its rows.
const ROW: &str = "row ";

fn main() -> ExitCode {
    let mut json = false;
    let mut quick = false;
    let mut child = None;
    let mut only = Vec::new();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--json" => json = true,
            "--quick" => quick = true,
            "--row" => child = arguments.next(),
            "--probe" => return probe(arguments.next()),
            "--steps" => return steps(arguments.next()),
            // Cargo's own.
            "--bench" => {}
            id if BENCHES.iter().any(|bench| bench.id == id) => only.push(id.to_owned()),
            other => {
                eprintln!("'{other}' is neither --json, --quick nor a row from B1 to B10");
                return ExitCode::FAILURE;
            }
        }
    }
    let effort = Effort { quick };
    if let Some(id) = child {
        return measure(&id, effort, json);
    }
    let mut rows = 0_usize;
    let mut reached = 0_usize;
    let mut failed = Vec::new();
    for bench in BENCHES {
        if !only.is_empty() && !only.iter().any(|id| id == bench.id) {
            continue;
        }
        if !json {
            eprintln!("{} ..", bench.id);
        }
        let told = in_a_process(bench, effort, json, |line, ok| {
            rows += 1;
            reached += usize::from(ok);
            println!("{line}");
            let _ = std::io::stdout().flush();
        });
        if let Err(why) = told {
            eprintln!("{}: {why}", bench.id);
            failed.push(bench.id);
        }
    }
    if json {
        println!(
            r#"{{"summary":true,"rows":{rows},"reached":{reached},"failed":{},"quick":{quick}}}"#,
            failed.len()
        );
    } else {
        println!("{reached} of {rows} reached");
    }
    if failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// What stands behind a row: the figure of one process that it is made of, or the steps to it.
fn probe(what: Option<String>) -> ExitCode {
    let Some(what) = what else {
        return ExitCode::FAILURE;
    };
    if let Some(figure) = memory::probe(&what) {
        println!("{figure}");
        return ExitCode::SUCCESS;
    }
    // As the rows that they explain: pinned.
    let run = myself(true).and_then(|mut command| {
        command
            .args(["--steps", &what])
            .status()
            .map_err(|error| error.to_string())
    });
    match run {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn steps(what: Option<String>) -> ExitCode {
    if what.is_some_and(|what| steps::probe(&what)) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn measure(id: &str, effort: Effort, json: bool) -> ExitCode {
    let Some(bench) = BENCHES.iter().find(|bench| bench.id == id) else {
        return ExitCode::FAILURE;
    };
    (bench.run)(effort, &mut |row| {
        let text = if json { row.json() } else { row.line() };
        println!("{ROW}{} {text}", row.ok());
    });
    ExitCode::SUCCESS
}

fn in_a_process(
    bench: &Bench,
    effort: Effort,
    json: bool,
    mut told: impl FnMut(&str, bool),
) -> Result<(), String> {
    let mut command = myself(bench.pinned)?;
    command.args(["--row", bench.id]).stdout(Stdio::piped());
    if effort.quick {
        command.arg("--quick");
    }
    if json {
        command.arg("--json");
    }
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    if let Some(out) = child.stdout.take() {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            match line.strip_prefix(ROW).and_then(|row| row.split_once(' ')) {
                Some((ok, row)) => told(row, ok == "true"),
                None => eprintln!("{line}"),
            }
        }
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    status
        .success()
        .then_some(())
        .ok_or_else(|| format!("its process ended with {status}"))
}

/// This program again, on one CPU where that is wanted and can be had.
fn myself(pinned: bool) -> Result<Command, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    Ok(match pinned.then(taskset).flatten() {
        Some(mut taskset) => {
            taskset.arg(own);
            taskset
        }
        None => Command::new(own),
    })
}

/// Runs what follows on the first CPU, where the system has the command for it.
fn taskset() -> Option<Command> {
    let known = Command::new("taskset")
        .args(["-c", "0", "true"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    known.is_ok_and(|status| status.success()).then(|| {
        let mut command = Command::new("taskset");
        command.args(["-c", "0"]);
        command
    })
}
