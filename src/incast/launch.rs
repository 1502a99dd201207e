//! Which rank this process is, of how many, and where rank 0 is: from options, or from what launchers put into the
//! environment.

/// Place of a process among all.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Place {
    /// 0 receives, all others send.
    pub(super) rank: u32,
    pub(super) size: u32,
    /// Host of rank 0, with or without port; none if nobody told.
    pub(super) master: Option<String>,
}

/// Rank and size as launchers name them: Open MPI, those that speak PMI (MPICH, Intel MPI, Cray), Slurm.
const LAUNCHERS: [(&str, &str); 3] =
    [("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")];

/// Puts options and environment together; options count first. The sentence says what is missing.
pub(super) fn find(
    rank: Option<u32>,
    size: Option<u32>,
    master: Option<String>,
    env: impl Fn(&str) -> Option<String>,
) -> Result<Place, String> {
    let number = |name: &str| {
        let text = env(name)?;
        Some(text.trim().parse::<u32>().map_err(|_| format!("{name} is '{text}', which is no number")))
    };
    let told = LAUNCHERS.iter().find(|(rank, size)| env(rank).is_some() && env(size).is_some());
    let of_launcher = |second: bool| told.and_then(|(rank, size)| number(if second { size } else { rank })).transpose();
    let rank = match rank {
        Some(rank) => Some(rank),
        None => of_launcher(false)?,
    };
    let size = match size {
        Some(size) => Some(size),
        None => of_launcher(true)?,
    };
    let (Some(rank), Some(size)) = (rank, size) else {
        return Err(
            "which process is this? Start it by mpirun or srun, or give --rank K --size N (rank 0 receives, the \
                    others send), or use --testbed to have everything on this machine"
                .into(),
        );
    };
    if size < 2 {
        return Err(format!("{size} processes make no incast; it takes a receiver and one sender at least"));
    }
    if rank >= size {
        return Err(format!("there is no rank {rank} of {size}; ranks are 0 to {}", size - 1));
    }
    let master = master.or_else(|| env("MASTER_ADDR")).or_else(|| {
        let list = env("SLURM_STEP_NODELIST").or_else(|| env("SLURM_JOB_NODELIST"));
        list.and_then(|list| first_host(&list))
    });
    // All on this machine.
    let local = || env("OMPI_COMM_WORLD_LOCAL_SIZE").is_some_and(|n| n.trim().parse() == Ok(size));
    let master = master.or_else(|| local().then(|| "127.0.0.1".into()));
    if rank > 0 && master.is_none() {
        return Err("where is rank 0? Give --master HOST, a name or address that all senders reach".into());
    }
    Ok(Place { rank, size, master })
}

/// The first host of a list as Slurm writes it: `node[03-07,12],gpu1`.
fn first_host(list: &str) -> Option<String> {
    let end = list.find([',', '[']).unwrap_or(list.len());
    let (name, rest) = list.split_at(end);
    let number = rest.strip_prefix('[').map_or("", |r| r.split([',', '-', ']']).next().unwrap_or(""));
    let host = format!("{name}{number}");
    (!host.is_empty()).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(pairs: &'static [(&str, &str)]) -> impl Fn(&str) -> Option<String> {
        move |name| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned())
    }

    fn place(rank: u32, size: u32, master: Option<&str>) -> Result<Place, String> {
        Ok(Place { rank, size, master: master.map(str::to_owned) })
    }

    #[test]
    fn launchers_are_understood() {
        let mpirun =
            env(&[("OMPI_COMM_WORLD_RANK", "3"), ("OMPI_COMM_WORLD_SIZE", "5"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "5")]);
        assert_eq!(find(None, None, None, &mpirun), place(3, 5, Some("127.0.0.1")));
        assert_eq!(find(None, None, Some("n1:99".into()), &mpirun), place(3, 5, Some("n1:99")));
        let mpich = env(&[("PMI_RANK", "0"), ("PMI_SIZE", "2")]);
        assert_eq!(find(None, None, None, &mpich), place(0, 2, None));
        let srun = env(&[("SLURM_PROCID", "1"), ("SLURM_NTASKS", "9"), ("SLURM_STEP_NODELIST", "gpu[07-11,3],x")]);
        assert_eq!(find(None, None, None, &srun), place(1, 9, Some("gpu07")));
        assert_eq!(find(Some(2), Some(4), None, &srun), place(2, 4, Some("gpu07")));
        assert_eq!(find(Some(2), Some(4), Some("a".into()), env(&[])), place(2, 4, Some("a")));
    }

    #[test]
    fn what_is_missing_is_said() {
        let says = |r: Result<Place, String>, what: &str| {
            let text = r.expect_err("not enough");
            assert!(text.contains(what), "{text}");
        };
        says(find(None, None, None, env(&[])), "--testbed");
        says(find(Some(1), Some(3), None, env(&[])), "--master");
        says(find(Some(3), Some(3), None, env(&[])), "no rank 3 of 3");
        says(find(Some(0), Some(1), None, env(&[])), "no incast");
        says(find(None, None, None, env(&[("PMI_RANK", "x"), ("PMI_SIZE", "2")])), "PMI_RANK");
    }

    #[test]
    fn first_hosts() {
        for (list, host) in [("a", "a"), ("a,b", "a"), ("n[1-3]", "n1"), ("n[08,10-11].lab", "n08"), ("a-1,b", "a-1")] {
            assert_eq!(first_host(list).as_deref(), Some(host));
        }
        assert_eq!(first_host(""), None);
    }
}
