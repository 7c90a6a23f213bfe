// Package datadir has what the files of a data directory have in common: where they are, who may use them, and when
// they are on the disk. It also measures how full the store of the journals is, and warns before it is full.
package datadir
