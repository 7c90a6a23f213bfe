#include "textflag.h"

// func int80(number uint64, args *[6]uint64) uint64
TEXT ·int80(SB), NOSPLIT, $8-24
	MOVQ BP, saved-8(SP)
	MOVQ number+0(FP), AX
	MOVQ args+8(FP), R12
	MOVQ 0(R12), BX
	MOVQ 8(R12), CX
	MOVQ 16(R12), DX
	MOVQ 24(R12), SI
	MOVQ 32(R12), DI
	MOVQ 40(R12), BP
	INT  $0x80
	MOVQ saved-8(SP), BP
	MOVQ AX, ret+16(FP)
	RET
