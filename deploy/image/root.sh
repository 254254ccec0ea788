#!/bin/sh
# The image's root without ferry itself: iptables of both kinds and kmod, with what they link to, and nothing that could be
# run besides. Packages are unpacked, not configured, so there is no shell; dpkg's status file says what was unpacked, for
# scanners. The same SOURCE_DATE_EPOCH and the same packages give the same bytes.
#
#   root.sh SUITE > root.tar
set -eu

# shellcheck disable=SC2016  # the hook's own shell expands it
record='for deb in "$1"/var/cache/apt/archives/*.deb; do
    dpkg-deb --field "$deb" | sed "1aStatus: install ok installed"
    echo
done > "$1/var/lib/dpkg/status"'

mmdebstrap --quiet --mode=chrootless --variant=extract --include=iptables,kmod,libgcc-s1 \
    --extract-hook="$record" --format=tar "$1" - |
    mmtarfilter \
        --path-exclude='/dev/*' \
        --path-exclude='/tmp' \
        --path-exclude='/etc/*' \
        --path-include='/etc/protocols' \
        --path-include='/etc/services' \
        --path-exclude='/usr/share/*' \
        --path-include='/usr/share/doc/*/copyright' \
        --path-exclude='/var/*' \
        --path-include='/var/lib/dpkg/status' \
        --path-exclude='/sbin/depmod' \
        --path-exclude='/sbin/rmmod' \
        --path-exclude='/usr/bin/iptables-xml' \
        --path-exclude='/usr/sbin/*apply' \
        --path-exclude='/usr/sbin/*translate' \
        --path-exclude='/usr/sbin/arptables*' \
        --path-exclude='/usr/sbin/ebtables*' \
        --path-exclude='/usr/sbin/nfnl_osf' \
        --path-exclude='/usr/sbin/xtables-monitor' \
        --path-exclude='/usr/lib/*/audit/*' \
        --path-exclude='/usr/lib/*/engines-3/*' \
        --path-exclude='/usr/lib/*/gconv/*' \
        --path-exclude='/usr/lib/*/ossl-modules/*' \
        --path-exclude='/usr/lib/*/libssl.so*' \
        --path-exclude='/usr/lib/*/perl*' \
        --path-exclude='/lib/*/libmvec.so*'
