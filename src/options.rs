//! The options of devices on the command line: the flags come from the one table, and a flag counts before its variable.

use std::collections::BTreeMap;

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use verbs_shim::Options;
use verbs_shim::faults::FaultSpec;
use verbs_shim::options::{OPTIONS, Opt, Source, from_env, strange_variables};

use crate::exit::{Exit, Fault, Result};
use crate::render;

/// Flags that were given, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeviceArgs {
    values: BTreeMap<&'static str, String>,
}

/// Options whose values are names of files.
const FILES: [&str; 3] = ["library", "log-file", "runtime-dir"];

impl DeviceArgs {
    /// The options of the command line and the environment. Tells about variables that look like options and are none.
    pub(crate) fn options(&self) -> Result<Options> {
        strange_variables().iter().for_each(|text| render::note(&format!("srd: warning: {text}")));
        self.parse()
    }

    /// The same, and tells nothing.
    pub(crate) fn parse(&self) -> Result<Options> {
        let get = |option: &'static Opt| match self.values.get(option.name) {
            Some(value) => Ok(Some((Source::Flag, value.clone()))),
            None => from_env(option),
        };
        Options::parse(get).map_err(|e| Fault::new(Exit::Usage, e))
    }

    /// What the flags are in the environment, valid in any working directory; and names of files that stand there already and
    /// are not.
    pub(crate) fn variables(&self) -> Vec<(String, String)> {
        // In a directory whose name is no text, a name is found from there only: the library takes no other values.
        let absolute = |path: &str| {
            let whole = std::path::absolute(path).ok().and_then(|whole| whole.into_os_string().into_string().ok());
            whole.unwrap_or_else(|| path.to_owned())
        };
        let valid = |option: &Opt, value: &str| match value.strip_prefix('@') {
            Some(path) if option.name == "fault" => format!("@{}", absolute(path)),
            // One line for whoever reads variables line by line, as from --print-env.
            None if option.name == "fault" && value.contains('\n') => {
                value.parse::<FaultSpec>().map_or_else(|_| value.to_owned(), |spec| spec.to_string())
            }
            _ if FILES.contains(&option.name) => absolute(value),
            _ => value.to_owned(),
        };
        let variable = |option: &'static Opt| match self.values.get(option.name) {
            Some(value) => Some((option.variable(), valid(option, value))),
            None => {
                let (_, value) = from_env(option).ok()??;
                Some((option.variable(), valid(option, &value))).filter(|(_, valid)| *valid != value)
            }
        };
        OPTIONS.iter().filter_map(variable).collect()
    }
}

impl FromArgMatches for DeviceArgs {
    fn from_arg_matches(matches: &ArgMatches) -> std::result::Result<DeviceArgs, clap::Error> {
        let mut args = DeviceArgs::default();
        args.update_from_arg_matches(matches)?;
        Ok(args)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> std::result::Result<(), clap::Error> {
        for option in OPTIONS {
            if let Some(value) = matches.get_one::<String>(option.name) {
                self.values.insert(option.name, value.clone());
            }
        }
        Ok(())
    }
}

impl Args for DeviceArgs {
    fn augment_args(command: Command) -> Command {
        command.args(OPTIONS.iter().map(|option| {
            let help = format!("{} [default: {}] [{}]", option.help, option.default, option.variable());
            Arg::new(option.name).long(option.name).value_name(option.value).help(help).help_heading(option.group)
        }))
    }

    fn augment_args_for_update(command: Command) -> Command {
        DeviceArgs::augment_args(command)
    }
}

#[cfg(test)]
mod tests {
    /// The rows of the table of one group, as they stand in the document.
    fn rows(group: &str) -> String {
        let row = |o: &super::Opt| {
            let value = o.value.replace('|', "\\|");
            format!("| `--{} {value}` | `{}` | {} | {} |\n", o.name, o.variable(), o.default, o.help)
        };
        super::OPTIONS.iter().filter(|o| o.group == group).map(row).collect()
    }

    #[test]
    fn the_document_has_the_whole_table() {
        let document = include_str!("../docs/options.md");
        let mut groups: Vec<_> = super::OPTIONS.iter().map(|o| o.group).collect();
        groups.dedup();
        for group in groups {
            let wanted = format!(
                "## {group}\n\n| flag | variable | default | what it does |\n|---|---|---|---|\n{}\n",
                rows(group)
            );
            assert!(format!("{document}\n").contains(&wanted), "docs/options.md must have this:\n\n{wanted}");
        }
    }
}
