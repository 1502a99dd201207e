//! The table of what works: `docs/compatibility.md`, and why pyverbs skips what it skips.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::case::{Case, Client, Package, Place, System};
use super::debian13;
use super::ladder::{self, pyverbs};
use super::line;
use super::stage::{Passed, Stage};

/// Collects results.
#[derive(Debug)]
pub(crate) struct Report {
    /// How cases ended, by their line: those of this run, and before that of the last one.
    results: BTreeMap<String, Result<String, String>>,
    /// Where they are kept for the next run.
    kept: PathBuf,
    /// Tests that pyverbs skipped, by the reason that it gave.
    skips: BTreeMap<String, Vec<String>>,
    clients: PathBuf,
}

impl Report {
    pub(crate) fn new(stage: &Stage) -> Result<Report, String> {
        fs::create_dir_all(stage.clients()).map_err(|e| format!("create {}: {e}", stage.clients().display()))?;
        let kept = stage.clients().join("results.json");
        // Without them, everything has to be run.
        let results = fs::read(&kept).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
        Ok(Report { results, kept, skips: BTreeMap::new(), clients: stage.clients().to_owned() })
    }

    /// Remembers what else a case has shown.
    pub(crate) fn note(&mut self, case: &Case, passed: &Passed) {
        if case.client == Client::Pyverbs {
            for (test, reason) in pyverbs::skipped(&passed.said) {
                let tests = self.skips.entry(reason).or_default();
                if !tests.contains(&test) {
                    tests.push(test);
                }
            }
        }
    }

    /// Remembers how a case ended, also for later runs.
    pub(crate) fn add(&mut self, case: &Case, result: Result<String, String>) -> Result<(), String> {
        self.results.insert(line(case), result);
        let text = serde_json::to_vec_pretty(&self.results).map_err(|e| e.to_string())?;
        fs::write(&self.kept, text).map_err(|e| format!("write {}: {e}", self.kept.display()))
    }

    /// Writes both documents, of the last result of each case.
    pub(crate) fn write(&self) -> Result<(), String> {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
        let put =
            |name: &str, text: String| fs::write(docs.join(name), text).map_err(|e| format!("write docs/{name}: {e}"));
        put("compatibility.md", self.compatibility()?)?;
        // Why tests are skipped is known only from a run of theirs.
        if self.skips.is_empty() { Ok(()) } else { put("pyverbs-skips.md", self.pyverbs_skips()) }
    }

    fn compatibility(&self) -> Result<String, String> {
        let mut text = String::from(
            "# Compatibility\n\n\
             Written by `./x clients --write`: unmodified programs for EFA, each started by `srd run` as an unprivileged user, in \
             network\nnamespaces made for it. *Loss* is 1 % of the packets in each direction; *dead paths* are two of the 16, \
             one of which dies\nlater; *disorder* is packets that overtake each other and arrive twice, and completions in \
             random order; *xdp* is AF_XDP at\nboth hosts, *xdp-udp* at the first (the server) only, with its four \
             capabilities. Where a command has `SRD_PUS=2`, servers of\nperftest have 4 processing units. Every case also \
             checks that its data went through the device.\n\n\
             UCX and fabtests are shown the files of a device (`srd run --device-files`), and MPICH's hwloc is told of the \
             machine's PCI\ndevices by `topology.xml` ([porting.md](porting.md#whole-stacks)). Intel MPI and NIXL's LIBFABRIC \
             backend have the\n`libfabric.so.1` of Open MPI's wheel; the latter has NVIDIA's libraries, too. There is no GPU: \
             fabtests skips what is for one.\nClients of Debian 13 run in its root file system, with the library and the command \
             that were built here.\n",
        );
        let cases = ladder::all();
        let missing = cases.iter().filter(|case| !self.results.contains_key(&line(case))).count();
        if missing > 0 {
            return Err(format!("{missing} cases have never been run: './x clients --full' runs all of them"));
        }
        let rows: Vec<(&Case, &Result<String, String>)> =
            cases.iter().map(|case| (case, &self.results[&line(case)])).collect();
        let mut clients: Vec<(Client, System)> = rows.iter().map(|(case, _)| (case.client, case.system)).collect();
        clients.sort_unstable();
        clients.dedup();
        for client in clients {
            let rows: Vec<_> = rows.iter().filter(|(case, _)| (case.client, case.system) == client).collect();
            let version = self.version(client.0, client.1)?;
            text += &format!(
                "\n## {}{version}\n\n| command | one host | two hosts | result |\n|---|---|---|---|\n",
                rows[0].0.title()
            );
            let mut commands: Vec<(String, [Vec<String>; 2], Vec<String>)> = Vec::new();
            for (case, result) in rows {
                let command = case.command();
                if commands.last().is_none_or(|(last, ..)| *last != command) {
                    commands.push((command, Default::default(), Vec::new()));
                }
                let Some((_, places, results)) = commands.last_mut() else { continue };
                places[usize::from(case.place == Place::TwoHosts)].push(case.conditions());
                let words = match result {
                    Ok(words) => words.clone(),
                    Err(why) => format!("**{}, {}: {why}**", case.place, case.network),
                };
                if !results.contains(&words) {
                    results.push(words);
                }
            }
            for (command, [one, two], results) in commands {
                text +=
                    &format!("| `{command}` | {} | {} | {} |\n", one.join(", "), two.join(", "), results.join("; "));
            }
        }
        Ok(text)
    }

    fn pyverbs_skips(&self) -> String {
        let mut text = String::from(
            "# What pyverbs skips\n\n\
             Written by `./x clients --write`. rdma-core's tests skip themselves where the device lacks what they are about. \
             None of\nthese would run on EFA hardware with the same rdma-core.\n\n| tests | reason that they give | on EFA |\n|---|---|---|\n",
        );
        for (reason, tests) in &self.skips {
            let ours = pyverbs::REASONS.iter().find(|(part, _)| reason.contains(part)).map_or("", |(_, ours)| ours);
            let mut tests: Vec<&str> = tests.iter().map(String::as_str).collect();
            tests.sort_unstable();
            text += &format!("| {} | {reason} | {ours} |\n", tests.join(", ").replace("test_", ""));
        }
        text
    }

    fn version(&self, client: Client, system: System) -> Result<String, String> {
        let mut ask = match client.package() {
            Package::Ours => return Ok(String::new()),
            Package::Debian(name) => {
                let mut ask = Command::new("dpkg-query");
                if system == System::Debian13 {
                    ask.arg("--root").arg(debian13::root(&self.clients));
                }
                ask.args(["--show", "--showformat", "${Version}", name]);
                ask
            }
            Package::PyPi(name) => {
                let venv = client.venvs().first().ok_or("a client from PyPI is in no virtual environment")?;
                let mut ask = Command::new(venv.dir(&self.clients).join("bin/python"));
                ask.arg("-c").arg(format!("import importlib.metadata as m; print(m.version('{name}'), end='')"));
                ask
            }
        };
        let out = ask.output().map_err(|e| format!("{ask:?}: {e}"))?;
        if !out.status.success() {
            return Err(format!("{ask:?}: {}", String::from_utf8_lossy(&out.stderr)));
        }
        Ok(format!(" {}", String::from_utf8_lossy(&out.stdout)))
    }
}
