#!/usr/bin/env bash
# Starts systemd as the first process of a machine that shares only the kernel with this one; see tests/machines.py.
#   enter NAME NETNS ROOT VOLUMES   on this machine: control groups, network namespace, then all other namespaces
#   inside NAME ROOT VOLUMES        in there: its file systems, then its init
set -euo pipefail

# Each hierarchy below this directory by itself, or the one that it is.
hierarchies() {
    if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
        echo .
    else
        findmnt --list --noheadings --output TARGET --types cgroup,cgroup2 | sed -n 's|^/sys/fs/cgroup/||p'
    fi
}

enter() {
    local name=$1 netns=$2 hierarchy group file
    for hierarchy in $(hierarchies); do
        group=/sys/fs/cgroup/$hierarchy/$name
        mkdir -p "$group"
        for file in cpuset.cpus cpuset.mems; do
            [ ! -e "$group/$file" ] || [ "$hierarchy" = . ] || cat "${group%/*}/$file" >"$group/$file"
        done
        echo $$ >"$group/cgroup.procs"
    done
    exec nsenter --net="/run/netns/$netns" -- unshare --mount --pid --fork --uts --ipc --cgroup --propagation=private \
        --kill-child bash "$0" inside "$name" "$3" "$4"
}

devices() {
    local line
    for line in null:1:3 zero:1:5 full:1:7 random:1:8 urandom:1:9 tty:5:0; do
        IFS=: read -r name major minor <<<"$line"
        mknod -m 666 "dev/$name" c "$major" "$minor"
    done
    cp -a /dev/loop-control /dev/loop[0-9]* dev/
    mkdir dev/pts dev/shm
    mount -t devpts -o newinstance,ptmxmode=0666,mode=620 none dev/pts
    mount -t tmpfs none dev/shm
    ln -s pts/ptmx dev/ptmx
    ln -s /proc/self/fd dev/fd
    for line in stdin:0 stdout:1 stderr:2; do ln -s "/proc/self/fd/${line#*:}" "dev/${line%:*}"; done
}

control_groups() {
    local hierarchy options
    if [ "$(hierarchies)" = . ]; then
        mount -t cgroup2 none sys/fs/cgroup
        return
    fi
    mount -t tmpfs -o mode=755 none sys/fs/cgroup
    for hierarchy in $(hierarchies); do
        options=$hierarchy
        mkdir "sys/fs/cgroup/$hierarchy"
        case "$hierarchy" in
        unified) mount -t cgroup2 none sys/fs/cgroup/unified ;;
        systemd) options=none,name=systemd ;;&
        *) mount -t cgroup -o "$options" none "sys/fs/cgroup/$hierarchy" ;;
        esac
    done
    if [ ! -d sys/fs/cgroup/systemd ] && [ ! -d sys/fs/cgroup/unified ]; then # systemd needs one of them
        mkdir sys/fs/cgroup/systemd
        mount -t cgroup -o none,name=systemd none sys/fs/cgroup/systemd
    fi
}

inside() {
    local name=$1 root=$2 volumes=$3 place
    mount --bind "$root" "$root"
    cd "$root"
    for place in var/lib/docker var/lib/containerd; do # overlays of their own, which cannot lie on another one
        mkdir -p "$place" "$volumes/$place"
        mount --bind "$volumes/$place" "$place"
    done
    mount -t proc proc proc
    mount -t sysfs sysfs sys
    control_groups
    mount -t tmpfs -o mode=755 none dev
    devices
    mount -t tmpfs -o mode=755 none run
    mount -t tmpfs none tmp
    hostname "$name"
    mkdir -p .outside
    pivot_root . .outside
    umount -l /.outside
    # systemd 256 and newer refuses cgroup v1 hierarchies without SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE.
    exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin /sbin/init --log-target=console --show-status=no \
        SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1 </dev/null
}

"$@"
