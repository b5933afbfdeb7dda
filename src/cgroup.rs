//! Where the limits of this process's control groups stand.

/// The files `unified` (version 2) and `legacy` (version 1) of a controller, for the groups in the
/// text of `/proc/self/cgroup` and all their parents. Inside of a container only some exist.
pub(crate) fn limit_files(
    groups: &str,
    controller: &str,
    unified: &str,
    legacy: &str,
) -> Vec<String> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup".to_owned(), unified),
            list if list.split(',').any(|name| name == controller) => {
                (format!("/sys/fs/cgroup/{controller}"), legacy)
            }
            _ => continue,
        };
        let mut group = path.trim_end_matches('/');
        loop {
            files.push(format!("{root}{group}/{file}"));
            match group.rfind('/') {
                Some(parent) => group = &group[..parent],
                None => break,
            }
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_and_its_parents_are_looked_at_in_both_versions() {
        let text = "0::/a/b\n3:cpu:/x\n4:pids,cpu:/y\n";
        assert_eq!(
            limit_files(text, "pids", "pids.max", "pids.max"),
            [
                "/sys/fs/cgroup/a/b/pids.max",
                "/sys/fs/cgroup/a/pids.max",
                "/sys/fs/cgroup/pids.max",
                "/sys/fs/cgroup/pids/y/pids.max",
                "/sys/fs/cgroup/pids/pids.max",
            ]
        );
        assert_eq!(
            limit_files(
                "9:memory:/y\n",
                "memory",
                "memory.max",
                "memory.limit_in_bytes"
            ),
            [
                "/sys/fs/cgroup/memory/y/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            ]
        );
    }
}
