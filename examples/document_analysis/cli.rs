//! The command line.

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use lexopt::prelude::*;

pub(crate) const HELP: &str = "\
Analyses the text and Markdown files under a folder, one agent a document.

Usage: document_analysis [FOLDER] [OPTIONS]

  FOLDER           the documents; this repository's docs/ and README.md unless given
  --make N         write N documents of 8 paragraphs into a temporary folder and take that
  --agents N       how many agents to keep submitted (default: 100)
  --connections N  how many database connections they share (default: 3)
  --catalog FILE   the models, as TOML or JSON; the provider `scripted` is the one that answers
                   (default: one model without a price; see examples/catalog.toml)
  --tpm N          the tokens per minute of that one model (default: 100000000, as good as no
                   limit)
  --latency-ms N   how long each model call takes (default: 200)
  --db PATH        the database; a document that is known by its path is replaced
                   (default: a temporary one)
  --json           print one line of JSON on stdout
  --help           print this

RUST_LOG=document_analysis=info logs how agents and their jobs begin and end.

Exits with 1 when a document failed or a file had to be skipped; what was saved stays.";

/// What was asked for.
#[derive(Debug)]
pub(crate) enum Request {
    Help,
    Run(Options),
}

#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) source: Source,
    pub(crate) agents: usize,
    pub(crate) connections: u32,
    pub(crate) models: Models,
    pub(crate) latency: Duration,
    pub(crate) database: Option<PathBuf>,
    pub(crate) json: bool,
}

/// Where the models come from.
#[derive(Debug)]
pub(crate) enum Models {
    /// The example's own, which extracts sentences.
    Extractive {
        tokens_per_minute: NonZeroU32,
    },
    Catalog(PathBuf),
}

/// Where the documents come from.
#[derive(Debug)]
pub(crate) enum Source {
    Repository,
    Folder(PathBuf),
    Make(u32),
}

/// Reads the arguments, the program's name not among them.
pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Request, String> {
    let mut options = Options {
        source: Source::Repository,
        agents: 100,
        connections: 3,
        models: Models::Extractive {
            tokens_per_minute: NonZeroU32::new(100_000_000).unwrap_or(NonZeroU32::MAX),
        },
        latency: Duration::from_millis(200),
        database: None,
        json: false,
    };
    let (mut tpm, mut catalog) = (None, None);
    let mut parser = lexopt::Parser::from_args(arguments);
    while let Some(argument) = parser.next().map_err(|error| error.to_string())? {
        match argument {
            Short('h') | Long("help") => return Ok(Request::Help),
            Long("json") => options.json = true,
            Long("db") => options.database = Some(PathBuf::from(value(&mut parser, "--db")?)),
            Long("make") => choose(
                &mut options.source,
                Source::Make(count(&mut parser, "--make")?),
            )?,
            Long("agents") => {
                options.agents = usize::try_from(count(&mut parser, "--agents")?)
                    .map_err(|error| format!("--agents: {error}"))?;
            }
            Long("connections") => options.connections = count(&mut parser, "--connections")?,
            Long("tpm") => tpm = Some(number(&mut parser, "--tpm", POSITIVE)?),
            Long("catalog") => catalog = Some(PathBuf::from(value(&mut parser, "--catalog")?)),
            Long("latency-ms") => {
                let millis = number(&mut parser, "--latency-ms", "a number of milliseconds")?;
                options.latency = Duration::from_millis(millis);
            }
            Value(folder) => choose(&mut options.source, Source::Folder(folder.into()))?,
            other => return Err(format!("{}; see --help", other.unexpected())),
        }
    }
    options.models = match (tpm, catalog) {
        (Some(_), Some(_)) => {
            return Err("take --tpm or --catalog: a catalog has the models' quotas".to_owned());
        }
        (Some(tokens_per_minute), None) => Models::Extractive { tokens_per_minute },
        (None, Some(file)) => Models::Catalog(file),
        (None, None) => options.models,
    };
    Ok(Request::Run(options))
}

fn choose(source: &mut Source, chosen: Source) -> Result<(), String> {
    if !matches!(source, Source::Repository) {
        return Err("take one FOLDER or --make N, not both or several".to_owned());
    }
    *source = chosen;
    Ok(())
}

const POSITIVE: &str = "a whole number from 1 to 4294967295";

fn count(parser: &mut lexopt::Parser, flag: &str) -> Result<u32, String> {
    number::<NonZeroU32>(parser, flag, POSITIVE).map(NonZeroU32::get)
}

fn number<T: FromStr>(parser: &mut lexopt::Parser, flag: &str, rule: &str) -> Result<T, String> {
    let text = value(parser, flag)?;
    text.to_str()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| format!("{flag} must be {rule}, not '{}'", text.display()))
}

fn value(parser: &mut lexopt::Parser, flag: &str) -> Result<OsString, String> {
    parser.value().map_err(|_| format!("{flag} needs a value"))
}
