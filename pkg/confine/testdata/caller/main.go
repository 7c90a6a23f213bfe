// Command caller makes the system calls of a file, one of each line: the ABI (native or int80), the number and six
// arguments. It prints the error number of each, 0 for none.
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"syscall"
)

func main() {
	runtime.LockOSThread()
	in, err := os.Open(os.Args[1])
	if err != nil {
		panic(err)
	}
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	for lines := bufio.NewScanner(in); lines.Scan(); {
		var abi string
		var number uint64
		var a [6]uint64
		if _, err := fmt.Sscan(lines.Text(), &abi, &number, &a[0], &a[1], &a[2], &a[3], &a[4], &a[5]); err != nil {
			panic(err)
		}
		var errno syscall.Errno
		if abi == "int80" {
			if result := int32(int80(number, &a)); result < 0 {
				errno = syscall.Errno(-result)
			}
		} else {
			_, _, errno = syscall.RawSyscall6(uintptr(number), uintptr(a[0]), uintptr(a[1]), uintptr(a[2]), uintptr(a[3]),
				uintptr(a[4]), uintptr(a[5]))
		}
		fmt.Fprintln(out, int(errno))
	}
}
